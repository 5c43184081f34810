# The nginx module, built against the distribution's nginx (package nginx-dev).
#
#   make module                      build/ngx_http_idem_module.so
#   make module NGINX_SRC=...        another nginx's sources; then also
#                NGINX_FLAGS="..."   its own flags, at least --with-compat
#
# The sources are copied once into build/nginx and configured there.
# `make module-steps` builds the module that tests stop at named steps,
# `make module-asan` that one with the sanitizers in it, and `make module-faults`
# one whose calls fail when a test says so (tests/faults/module.c).
# MODULE_FLAGS: more flags for the compiler, as scripts/coverage needs them.

NGINX_SRC ?= /usr/share/nginx/src
NGINX_FLAGS ?=

nginx_src := $(filter-out $(not_code),$(wildcard src/gateway/module/*.[ch])) \
    $(addprefix src/,wire/wire_command.c wire/wire_reply.c wire/wire_brief.c wire/wire_resp.c record/names.c base/error.c serve/http/problem_page.c) \
    $(addprefix src/,wire/wire.h wire/wire_digits.h record/record.h base/error.h base/hex.h base/le.h base/problem.h serve/http/problem_page.h) docs/problems.md docs/problems.zh-CN.md

ifneq ($(wildcard $(NGINX_SRC)/configure),)

module: build/ngx_http_idem_module.so
module-steps: build/steps/ngx_http_idem_module.so
module-asan: build/address-undefined/ngx_http_idem_module.so
module-faults: build/faults/ngx_http_idem_module.so

build/nginx/objs/Makefile: src/gateway/module/config src/gateway/module/configure-module
	@src/gateway/module/configure-module $(NGINX_SRC) build/nginx "$(NGINX_FLAGS)"

# CFLAGS of make's command line would replace those of nginx's Makefile, which has them already.
build/ngx_http_idem_module.so: build/nginx/objs/Makefile $(nginx_src)
	@$(MAKE) -s -C build/nginx -f objs/Makefile modules $(if $(MODULE_FLAGS),CC="$(CC) $(MODULE_FLAGS)") CFLAGS="$$(sed -n 's/^CFLAGS = *//p' build/nginx/objs/Makefile)" >build/nginx/make.log 2>&1 || { cat build/nginx/make.log; exit 1; }
	@install build/nginx/objs/ngx_http_idem_module.so $@ # a new file: a running nginx has the old one mapped

steps_flags = $(shell sed -n 's/^CFLAGS = *//p' build/nginx/objs/Makefile) -O1 -fPIC -shared -DIDEM_FAILPOINTS=1 $(MODULE_FLAGS)
steps_incs = -Isrc/gateway/module -Iinclude -Ibuild/nginx/objs \
    $(addprefix -Ibuild/nginx/,src/core src/event src/event/modules src/os/unix src/http src/http/modules src/http/v2 \
      src/event/quic src/http/v3) # the last two: nginx 1.25 and newer
steps_link = @mkdir -p $(@D) && $(CC) $(steps_flags) $(1) $(steps_incs) -o $@ $(filter %.c,$(nginx_src)) \
	    build/nginx/objs/ngx_http_idem_module_modules.c -lsodium
build/steps/ngx_http_idem_module.so: build/ngx_http_idem_module.so
	$(call steps_link)
build/address-undefined/ngx_http_idem_module.so: build/ngx_http_idem_module.so tests/support/asan_pool.h
	$(call steps_link,-fsanitize=address$(comma)undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer \
	    -include tests/support/asan_pool.h)
build/faults/ngx_http_idem_module.so: build/ngx_http_idem_module.so tests/faults/module.c
	@mkdir -p $(@D) && $(CC) $(filter-out -shared,$(steps_flags)) $(steps_incs) -c tests/faults/module.c -o $(@D)/module.o
	$(call steps_link,$(@D)/module.o `nm $(@D)/module.o | sed -n 's/.* U __real_/-Wl$(comma)--wrap=/p'`)

else

module:
	@echo "idem: no nginx sources in $(NGINX_SRC): the gateway's module is not built" >&2

endif
