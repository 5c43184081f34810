// Keeps the tests, which need drivers of databases, out of the module idem. tests/support/client_builds.py builds them with Debian's packages.
module idem/tests

go 1.19
