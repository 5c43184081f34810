# make          build/idem, build/libidem.a, build/libidem.so, the nginx module
# make help     this text
# make check    install what is missing, run every test
# make demo     install what is missing, show it at work
# make demo-bank  the same for examples/bank, on port 8080
# make bench    ratios against named peers; make soak: faults and load, long
# make partition   real stores whose network is cut, and failovers; needs root
# make docs     the documentation as a site with search, in build/site
# make dist     a tarball with its checksum; make deb: Debian packages;
#               make package-check: and their life on Debian 12 and 13
# make image    a container image of those packages; make image-check: run it
# make fuzz     every parser, longer; make install: DESTDIR and PREFIX work
#
# Sources are found by folder: a new .c file in a folder below needs no change
# here. X_test.c and X_fuzz.c lie beside X.c and are found the same way.
#
#   SANITIZE=address,undefined | thread   build into a folder of its own
#   WITH_REDIS=0 ...                      leave a store (and its library) out
#   WERROR=1                              warnings are errors, as in make check

PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
VERSION := $(shell sed -n 's/^\#define IDEM_VERSION "\(.*\)"/\1/p' include/idem/idem.h)
SOVERSION := 0

WITH_NGINX ?= 1

comma := ,
B ?= build$(if $(SANITIZE),/$(subst $(comma),-,$(SANITIZE)))

# ---- what is in ------------------------------------------------------------

# A module is a store or a broker with a library of its own: libidem.so and
# idem load it when a URL names it, libidem.a has it inside. Leave one out
# with WITH_NAME=0.
modules :=
defines :=
packages := libsodium libxxhash jansson openssl
bin_packages := libmicrohttpd gnutls libcurl
define module # switch, name, sources, packages, other libraries
WITH_$(1) ?= 1
$(2)_src := $$(filter-out $$(not_code),$$(wildcard $(3)))
$(2)_libs = $$(if $(4),$$(shell pkg-config --libs $(4))) $(5)
in_modules += $$($(2)_src)
ifeq ($$(WITH_$(1)),1)
modules += $(2)
defines += -DIDEM_WITH_$(1)
module_packages += $(4)
module_libs += $(5)
endif
endef
not_code := %_test.c %_fuzz.c
# Compiled by nginx's own makefile.
nginx_code := src/gateway/module/ngx_%
$(eval $(call module,SQLITE,sqlite,src/store/sqlite/*.c src/sql/*_sqlite.c,sqlite3))
$(eval $(call module,REDIS,redis,src/store/redis/*.c src/consume/redis_stream.c,hiredis))
$(eval $(call module,POSTGRES,postgres,src/store/postgres/*.c src/sql/sql_postgres.c,libpq))
$(eval $(call module,MYSQL,mysql,src/store/mysql/*.c src/sql/sql_mysql.c,libmariadb))
$(eval $(call module,ZOOKEEPER,zookeeper,src/store/zookeeper/*.c,,-lzookeeper_mt))
$(eval $(call module,ETCD,etcd,src/store/etcd/*.c,libcurl))
$(eval $(call module,RABBITMQ,rabbitmq,src/consume/rabbitmq.c,librabbitmq))
$(eval $(call module,KAFKA,kafka,src/consume/kafka.c,rdkafka))
$(eval $(call module,NATS,nats,src/consume/nats.c,libnats))
extra_cflags := -DTHREADED # the form of ZooKeeper's client that we use

lib_dirs := src/base src/record src/store src/store/journal src/engine src/sql \
            src/token src/id src/lock src/consume src/wire src/remote
bin_dirs := src/serve/core src/serve/resp src/serve/http src/serve/play \
            src/gateway/launch src/gateway/module src/cli
lib_src := $(filter-out $(not_code) $(in_modules),$(foreach d,$(lib_dirs),$(wildcard $(d)/*.c)))
module_src := $(foreach m,$(modules),$($(m)_src))
code_dirs := $(sort $(lib_dirs) $(patsubst %/,%,$(dir $(module_src)))) $(bin_dirs)
bin_src := $(filter-out $(not_code) $(nginx_code),$(foreach d,$(bin_dirs),$(wildcard $(d)/*.c)))
test_src := $(sort $(foreach d,$(code_dirs) tests/c,$(wildcard $(d)/*_test.c)))
fuzz_src := $(sort $(foreach d,$(code_dirs),$(wildcard $(d)/*_fuzz.c)))
test_support_src := $(wildcard tests/support/*.c)
bench_src := $(wildcard bench/*.c)
example_src := $(filter-out $(if $(filter 1,$(WITH_SQLITE)),,examples/consume_sql.c),$(wildcard examples/*.c))

# ---- how it is built -------------------------------------------------------

WARN := -Wall -Wextra -Wmissing-prototypes -Wshadow -Wvla -Wformat=2 $(if $(WERROR),-Werror)
CFLAGS ?= -O2 -g
all_packages := $(sort $(packages) $(bin_packages) $(module_packages))
pkg_cflags := $(shell pkg-config --cflags $(all_packages) 2>/dev/null)
lib_libs := $(shell pkg-config --libs $(packages) 2>/dev/null) -ldl -lm -pthread
bin_libs := $(shell pkg-config --libs $(bin_packages) 2>/dev/null) $(lib_libs)
libs := $(shell pkg-config --libs $(all_packages) 2>/dev/null) $(module_libs) $(lib_libs)
ifneq ($(filter-out check check-% demo demo-bank bench soak coverage partition compat fuzz clean format uninstall docs dist deb package-check image image-check,$(or $(MAKECMDGOALS),all)),)
missing := $(shell for p in $(all_packages); do pkg-config --exists $$p || echo $$p; done 2>/dev/null)
$(if $(missing),$(warning idem: these libraries are missing: $(missing); run scripts/deps build, or leave a store out: make WITH_REDIS=0))
endif
sanitize := $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer)
compile = $(CC) -std=gnu11 -D_GNU_SOURCE $(CFLAGS) $(WARN) $(sanitize) -fPIC \
    -fvisibility=hidden -pthread -Iinclude -include src/base/poison.h $(defines) $(extra_cflags) $(pkg_cflags) -MMD -MP
link = $(CC) $(CFLAGS) $(LDFLAGS) $(sanitize) -pthread

lib_obj := $(lib_src:%.c=$(B)/obj/%.o) # what libidem.so has
# libidem.a has the modules inside.
whole_src := $(filter-out src/base/module.c,$(lib_src)) src/builtin/builtin.c $(module_src)
whole_obj := $(whole_src:%.c=$(B)/obj/%.o)
bin_obj := $(bin_src:%.c=$(B)/obj/%.o)
bin_obj += $(B)/obj/console_files.o
inner_obj := $(whole_obj) $(filter-out %/cli/main.o,$(bin_obj))
module_files := $(modules:%=$(B)/modules/%.so)
test_support_obj := $(test_support_src:%.c=$(B)/obj/%.o)
tests := $(test_src:%.c=$(B)/%)
fuzzers := $(fuzz_src:%.c=build/fuzz/%)
examples := $(example_src:%.c=$(B)/%)
# An example of several files lies in a folder; bank needs all three databases.
ifeq ($(WITH_SQLITE)$(WITH_POSTGRES)$(WITH_MYSQL),111)
examples += $(B)/examples/bank
endif
benches := $(bench_src:%.c=$(B)/%)

.PHONY: again all help lib modules module test-programs syntax simulate simulate-bugs mutate check demo demo-bank bench soak coverage hostile partition fuzz \
    install uninstall clean format docs dist deb package-check image image-check deps-% compdb

# A bare `make` ends with what to do next.
all: lib modules $(B)/idem $(examples) $(if $(SANITIZE),,module)
	@$(if $(MAKECMDGOALS)$(findstring s,$(firstword -$(MAKEFLAGS))),:,echo "built: $(B)/idem; try make demo, or make help")

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' $(firstword $(MAKEFILE_LIST))

lib: $(B)/libidem.a $(B)/libidem.so

# Objects depend on how they are compiled: a store that comes in or goes out, or
# another compiler, rebuilds them. Kept as a file that changes only with it.
flags_now := $(CC) $(filter-out -W%,$(compile))
$(shell mkdir -p $(B) && printf '%s\n' '$(subst ','\'',$(flags_now))' | cmp -s - $(B)/flags || printf '%s\n' '$(subst ','\'',$(flags_now))' > $(B)/flags)

$(B)/obj/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	$(compile) -c $< -o $@

# Where module.c looks for modules in the end.
$(shell mkdir -p $(B) && echo '$(LIBDIR)' | cmp -s - $(B)/libdir || echo '$(LIBDIR)' > $(B)/libdir)
$(B)/obj/src/base/module.o: $(B)/libdir
$(B)/obj/src/base/module.o: compile += -DIDEM_MODULE_DIR='"$(LIBDIR)/idem"'

# The console is bundled by esbuild from console/ and becomes C. Without npm
# there is an empty one, and idem serve --console says so. npm's packages are
# those of the lock file; they lie in build/ and are shared by all builds.
npm_modules := build/npm/node_modules
$(npm_modules)/.ready: console/package.json console/package-lock.json
	@mkdir -p $(@D) && cp $^ build/npm && cd build/npm && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >npm.log 2>&1 && touch node_modules/.ready
$(B)/console/files.c: $(wildcard console/*) $(if $(shell grep -sL f0 $(B)/console/files.c),again)
	@mkdir -p $(@D) build
	@if command -v npm >/dev/null && flock build/npm.lock $(MAKE) -s $(npm_modules)/.ready; then \
	    node console/build.mjs $@ $(abspath $(npm_modules)); \
	else \
	    echo "idem: built without the console: npm is missing (run scripts/deps build), or could not fetch its packages (see build/npm/npm.log); then run make again" >&2; \
	    test -f $@ || printf '%s\n' '#include "src/serve/http/console_files.h"' 'const struct console_file console_files[] = {{0, 0, 0, 0}};' > $@; \
	fi
again: # a console that is missing is tried again
$(B)/obj/console_files.o: $(B)/console/files.c $(B)/flags
	@mkdir -p $(@D)
	$(compile) -I. -c $< -o $@
build/fuzz/obj/console_files.o: $(B)/console/files.c
	@mkdir -p $(@D)
	clang $(fuzz_flags:-fsanitize=%=) -I. -c $< -o $@

# Files that are part of the program (.incbin), which the compiler does not tell.
$(B)/obj/src/serve/http/problem_page.o build/fuzz/obj/src/serve/http/problem_page.o: docs/problems.md docs/problems.zh-CN.md
$(B)/obj/src/store/columns.o build/fuzz/obj/src/store/columns.o: $(wildcard sql/*.sql)

$(B)/libidem.a: $(whole_obj)
	@rm -f $@
	ar rcs $@ $^

$(B)/libidem.so.$(VERSION): $(lib_obj)
	$(link) -shared -Wl,-soname,libidem.so.$(SOVERSION) -Wl,-z,defs -o $@ $^ $(lib_libs)

$(B)/libidem.so: $(B)/libidem.so.$(VERSION)
	ln -sf $(<F) $(B)/libidem.so.$(SOVERSION)
	ln -sf $(<F) $@

# Everything but main(), for tests that look inside.
$(B)/libidem-inner.a: $(inner_obj)
	@rm -f $@
	ar rcs $@ $^

# What a module takes from the library is copied into it, and not exported.
$(B)/libidem-core.a: $(lib_obj)
	@rm -f $@
	ar rcs $@ $^
define module_rule
$(B)/modules/$(1).so: $($(1)_src:%.c=$(B)/obj/%.o) $(B)/obj/src/builtin/version.o $(B)/libidem-core.a
	@mkdir -p $$(@D)
	$$(link) -shared $$(if $$(SANITIZE),,-Wl$$(comma)-z$$(comma)defs) -Wl,--exclude-libs,ALL -o $$@ $$^ $$($(1)_libs) $$(lib_libs)
endef
$(foreach m,$(modules),$(eval $(call module_rule,$(m))))
modules: $(module_files)

$(B)/idem: $(bin_obj) $(B)/libidem-core.a | modules
	$(link) -o $@ $(bin_obj) $(B)/libidem-core.a $(bin_libs)

$(B)/examples/bank: $(wildcard examples/bank/*.c examples/bank/*.h) $(B)/libidem.a
	@mkdir -p $(@D)
	$(compile) -MF $@.d -o $@ $(filter %.c,$^) $(B)/libidem.a $(libs) -lcrypto

$(B)/examples/%: examples/%.c $(B)/libidem.a
	@mkdir -p $(@D)
	$(compile) -o $@ $< $(B)/libidem.a $(libs)

# ---- tests -----------------------------------------------------------------

$(tests): $(B)/%: $(B)/obj/%.o $(test_support_obj) $(B)/libidem-inner.a
	@mkdir -p $(@D)
	$(link) -o $@ $(filter %.o,$^) $(B)/libidem-inner.a -lcmocka $(test_ldflags) $(libs)

# Tests in which the n-th allocation fails.
alloc_link := -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup,--wrap=strndup,--wrap=asprintf
%_alloc_test: test_ldflags = $(alloc_link)
# And one in which the n-th call of a database's library fails.
sql_link := $(shell sed -n 's/^\(REPLACES\|TELLS\).[^,]*, \([a-z0-9A-Z_]*\).*/-Wl,--wrap=\2/p; s/^READS.\([a-z_]*\).*/-Wl,--wrap=\1/p' tests/support/failing_sql.h)
$(B)/tests/c/sqlfault_alloc_test: test_ldflags = $(alloc_link) $(sql_link) \
    -Wl,--wrap=idem_arena_take,--wrap=idem_arena_record,--wrap=idem_buf_add,--wrap=idem_buf_add_text,--wrap=PQunescapeBytea,--wrap=mysql_stmt_init,--wrap=mysql_stmt_result_metadata

# Tests in which the n-th call on files, or allocation, fails.
calls_link := $(alloc_link) $(foreach f,pread64 pwrite64 read fsync fdatasync ftruncate64 fallocate64 renameat unlinkat faccessat fstat64 lstat64 mkdir \
    flock fdopendir readdir64 realpath mmap64 openat64 geteuid \
    pipe2 pidfd_open getsockopt fopen64 sodium_malloc sodium_init pthread_create,-Wl$(comma)--wrap=$f)
%_calls_test: test_ldflags = $(calls_link)

test-programs: $(tests)

# Programs that tests of the running system start.
$(B)/tests/tools/%: tests/support/tools/%.c $(B)/flags
	@mkdir -p $(@D)
	$(filter-out -MMD -MP,$(compile)) -o $@ $< $(libs)

# Loaded into a MariaDB whose disk is to hang.
$(B)/tests/stall_log.so: tests/support/tools/stall_log.c $(B)/flags
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -D_GNU_SOURCE -O2 -g $(WARN) -fPIC -shared -o $@ $< -ldl

# Loaded into an idem whose commits are to be refused.
$(B)/tests/refuse_commit.so: tests/support/tools/refuse_commit.c $(B)/flags
	@mkdir -p $(@D)
	$(filter-out -MMD -MP -include src/base/poison.h,$(compile)) -fvisibility=default -shared -o $@ $< -ldl

# Loaded into a program whose calls are to fail (tests/faults).
$(B)/tests/faults.so: tests/faults/faults.c $(B)/flags
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -D_GNU_SOURCE -O2 -g $(WARN) -fPIC -shared -o $@ $< -ldl

# The simulator (tests/sim): calls of threads and clocks are bound to its world.
sim_src := $(wildcard tests/sim/*.c) tests/support/disk.c
sim_obj := $(sim_src:%.c=$(B)/obj/%.o)
sim_wrap := $(shell sed -n 's/^__wrap_\([a-z0-9_]*\).*/-Wl,--wrap=\1/p' $(sim_src) | sort -u)
sim_link = $(B)/libidem-inner.a $(sim_wrap) $(libs)
$(B)/tests/sim/simulate: $(sim_obj) $(B)/libidem-inner.a
	@mkdir -p $(@D)
	$(link) -o $@ $(sim_obj) $(sim_link)
print-simulate: $(B)/tests/sim/simulate
	@echo 'compile: $(filter-out -MMD -MP,$(compile))'
	@echo 'objects: $(sim_obj)'
	@echo 'link: $(link) $(sim_link)'
	@echo 'test-objects: $(test_support_obj)'
	@echo 'test-link: $(link) $(B)/libidem-inner.a -lcmocka $(libs)'
	@echo 'alloc-link: $(alloc_link)'
	@echo 'inner: $(inner_obj)'

# make simulate: a minute of worlds; HOURS=2 for longer; then the planted bugs.
simulate: $(B)/tests/sim/simulate
	$(B)/tests/sim/simulate --seconds $(if $(HOURS),$$(($(HOURS) * 3600)),60)
simulate-bugs: $(B)/tests/sim/simulate
	tests/sim/bugs.py

# make mutate: small changes of the code, each of which a test must notice (tests/mutate); FILES=step SAMPLE=50 for a part; JOBS=4 at a time.
mutate: $(B)/tests/sim/simulate test-programs
	tests/mutate/mutate.py $(if $(JOBS),--jobs $(JOBS)) $(if $(SAMPLE),--sample $(SAMPLE)) $(FILES)

# What another compiler says about all of it: make syntax CC=clang
# (but for benchmarks of libraries that only `make bench` installs)
syntax_src := $(lib_src) $(module_src) $(wildcard src/builtin/*.c) $(bin_src) $(test_src) $(fuzz_src) $(test_support_src) $(example_src) \
    $(if $(bench_src),$(shell grep -LE '<(lmdb|rocksdb)' $(bench_src)))
syntax: $(syntax_src:%=syntax-%)
$(syntax_src:%=syntax-%): syntax-%:
	@$(filter-out -MMD -MP,$(compile)) -fsyntax-only $*
print-tests:
	@echo $(tests)
print-fuzzers:
	@echo $(fuzzers)

fuzz_flags := -std=gnu11 -D_GNU_SOURCE -O1 -g -fsanitize=fuzzer,address,undefined \
    -fno-sanitize-recover=undefined -pthread -Iinclude $(defines) $(extra_cflags) $(pkg_cflags)
build/fuzz/obj/%.o: %.c Makefile
	@mkdir -p $(@D)
	clang $(subst fuzzer$(comma),fuzzer-no-link$(comma),$(fuzz_flags)) -MMD -MP -c $< -o $@
build/fuzz/libidem-inner.a: $(patsubst $(B)/obj/%,build/fuzz/obj/%,$(inner_obj))
	@rm -f $@
	ar rcs $@ $^
$(fuzzers): build/fuzz/%: build/fuzz/obj/%.o build/fuzz/libidem-inner.a
	@mkdir -p $(@D)
	clang $(fuzz_flags) -o $@ $^ $(libs)
fuzz-programs: $(fuzzers)

check:
	@scripts/deps build check demo
	@tests/run $(if $(ONLY),--only $(ONLY))

# One part of it: make check-c, make check-py, make check ONLY=journal
check-%:
	@tests/run --only $*

fuzz:
	@scripts/deps build check
	@tests/run --only fuzz --long

soak:
	@scripts/deps build check bench
	@tests/soak/run $(if $(MINUTES),--minutes $(MINUTES)) $(if $(JOBS),--jobs $(JOBS)) $(if $(ONLY),--only $(ONLY))

hostile:
	@scripts/deps build check
	@tests/run --only hostile

# ONLY=word: some scenarios; SEED=7 ROUNDS=3: seeds 7, 8 and 9
partition:
	@scripts/deps build check partition
	@$(MAKE) -s -j2 all
	@tests/partition/run $(if $(ONLY),--only "$(ONLY)") $(if $(SEED),--seed $(SEED)) $(if $(ROUNDS),--rounds $(ROUNDS))

# Lines and branches that the tests execute; ONLY="c gateway" for a part of the tests.
coverage:
	@scripts/deps build check
	@scripts/coverage $(ONLY)

compat:
	@scripts/deps build check
	@scripts/compat

demo:
	@scripts/deps build demo
	@$(MAKE) -s -j2 all
	@scripts/demo

demo-bank:
	@scripts/deps build demo
	@$(MAKE) -s -j2 all
	@echo "The calls are in examples/bank/README.md."
	@examples/bank/run 8080

$(benches): $(B)/%: $(B)/obj/%.o $(B)/libidem-inner.a
	@mkdir -p $(@D)
	$(link) -o $@ $< $(B)/libidem-inner.a $(bench_ldflags) $(libs)
$(B)/bench/journal_bench: bench_ldflags = -llmdb -lrocksdb -lsqlite3
bench-programs: $(benches)

bench:
	@scripts/deps build bench
	@$(MAKE) -s -j2 all bench-programs
	@bench/run

# ---- the nginx module ------------------------------------------------------

ifeq ($(WITH_NGINX),1)
-include src/gateway/module/module.mk
endif
module:

# ---- install ---------------------------------------------------------------

install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(PREFIX)/include/idem $(addprefix $(DESTDIR)$(PREFIX)/share/man/,man1 man5)
	install $(B)/idem $(DESTDIR)$(PREFIX)/bin/idem
	install -m 644 include/idem/*.h $(DESTDIR)$(PREFIX)/include/idem
	install -m 644 $(B)/libidem.a $(DESTDIR)$(LIBDIR)
	install $(B)/libidem.so.$(VERSION) $(DESTDIR)$(LIBDIR)
	ln -sf libidem.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libidem.so.$(SOVERSION)
	ln -sf libidem.so.$(SOVERSION) $(DESTDIR)$(LIBDIR)/libidem.so
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@VERSION@|$(VERSION)|' \
	    -e 's|@PACKAGES@|$(sort $(packages) $(module_packages))|' -e 's|@LIBS@|$(module_libs) -ldl|' scripts/idem.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/idem.pc
	if [ -d sql ]; then install -d $(DESTDIR)$(PREFIX)/share/idem/sql && install -m 644 sql/*.sql $(DESTDIR)$(PREFIX)/share/idem/sql; fi
	install -m 644 clients/js/idem.js $(DESTDIR)$(PREFIX)/share/idem
	if [ -d docs/man ]; then install -m 644 docs/man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1; fi
	for c in $$($(B)/idem --help | sed -n 's/^  \([a-z][a-z]*\) .*/\1/p' | grep -vx help); do \
	    $(B)/idem help --man $$c > $(DESTDIR)$(PREFIX)/share/man/man1/idem-$$c.1 || exit 1; done
	for f in idem.conf idem-gateway.conf; do $(B)/idem help --man $$f > $(DESTDIR)$(PREFIX)/share/man/man5/$$f.5 || exit 1; done
	install -d $(addprefix $(DESTDIR)$(PREFIX)/share/,bash-completion/completions zsh/vendor-completions fish/vendor_completions.d)
	$(B)/idem completion bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/idem
	$(B)/idem completion zsh > $(DESTDIR)$(PREFIX)/share/zsh/vendor-completions/_idem
	$(B)/idem completion fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/idem.fish
	install -d $(DESTDIR)$(LIBDIR)/idem && install -m 644 $(module_files) $(DESTDIR)$(LIBDIR)/idem
	if [ -f $(B)/ngx_http_idem_module.so ]; then install -m 644 $(B)/ngx_http_idem_module.so $(DESTDIR)$(LIBDIR)/idem; fi

uninstall:
	rm -rf $(DESTDIR)$(PREFIX)/bin/idem $(DESTDIR)$(PREFIX)/include/idem $(DESTDIR)$(LIBDIR)/libidem.* \
	    $(DESTDIR)$(LIBDIR)/pkgconfig/idem.pc $(DESTDIR)$(PREFIX)/share/idem $(DESTDIR)$(LIBDIR)/idem $(DESTDIR)$(PREFIX)/share/man/man1/idem*.1 $(DESTDIR)$(PREFIX)/share/man/man5/idem*.5 \
	    $(DESTDIR)$(PREFIX)/share/bash-completion/completions/idem \
	    $(DESTDIR)$(PREFIX)/share/zsh/vendor-completions/_idem $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/idem.fish

clean:
	rm -rf build

docs:
	@scripts/deps docs
	@scripts/docs

# Both depend on what is committed and on nothing else, so two runs make the
# same bytes.
dist:
	@scripts/dist

deb:
	@scripts/deps build package
	@scripts/deb

# Install, use, upgrade, remove and purge them on Debian 12 and 13.
package-check:
	@scripts/package-check

image: deb
	@scripts/image
image-check: deb
	@scripts/deps image
	@scripts/image --check

format:
	clang-format -i $$(git ls-files '*.c' '*.h' ':!src/gateway/module/ngx_*')

-include $(shell find $(B)/obj build/fuzz/obj -name '*.d' 2>/dev/null)
