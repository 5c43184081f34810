# The nginx module, built against the distribution's nginx (package nginx-dev).
#
#   make module                      build/ngx_http_idem_module.so
#   make module NGINX_SRC=...        another nginx's sources; then also
#                NGINX_FLAGS="..."   its own flags, at least --with-compat
#
# The sources are copied once into build/nginx and configured there. The module
# that tests stop at named steps is build/steps/ngx_http_idem_module.so.

NGINX_SRC ?= /usr/share/nginx/src
NGINX_FLAGS ?=

module_src := $(wildcard src/gateway/nginx/*.c src/gateway/nginx/*.h \
    src/gateway/*.h) $(filter-out $(not_code),$(wildcard \
    $(foreach f,key reply result json fields,src/gateway/$(f).c)))

ifneq ($(wildcard $(NGINX_SRC)/configure),)

module: build/ngx_http_idem_module.so
module-steps: build/steps/ngx_http_idem_module.so

build/nginx/objs/Makefile: src/gateway/nginx/config src/gateway/configure-module
	@src/gateway/configure-module $(NGINX_SRC) build/nginx "$(NGINX_FLAGS)" ""

build/nginx-steps/objs/Makefile: src/gateway/nginx/config src/gateway/configure-module
	@src/gateway/configure-module $(NGINX_SRC) build/nginx-steps "$(NGINX_FLAGS)" -DIDEM_FAILPOINTS=1

build/ngx_http_idem_module.so: build/nginx/objs/Makefile $(module_src)
	@$(MAKE) -s -C build/nginx -f objs/Makefile modules >build/nginx/make.log 2>&1 || { cat build/nginx/make.log; exit 1; }
	@cp build/nginx/objs/ngx_http_idem_module.so $@

build/steps/ngx_http_idem_module.so: build/nginx-steps/objs/Makefile $(module_src)
	@mkdir -p $(@D)
	@$(MAKE) -s -C build/nginx-steps -f objs/Makefile modules >build/nginx-steps/make.log 2>&1 || { cat build/nginx-steps/make.log; exit 1; }
	@cp build/nginx-steps/objs/ngx_http_idem_module.so $@

else

module:
	@echo "idem: no nginx sources in $(NGINX_SRC): the gateway's module is not built" >&2

endif
