# Everyday commands. `make` alone lists them.

GOLANGCI_LINT_VERSION := 2.15.0
COMPOSE_VERSION := 2.40.3
FUZZTIME ?= 30s
BENCH ?= .
SIMULATE ?= 200
ROWS ?=
PKG ?= ./...
ROUNDS ?= 3
SEED ?= 1
N ?= 300
SPAN ?= 10s
BEFORE ?=

# A relative path, because the absolute path of a clone may contain spaces, which a target must not.
BIN := bin
LINT := $(BIN)/golangci-lint
STANDIN_PACKAGES := internal/test/compose/standins/packages
STANDINS := $(BIN)/standins-$(firstword $(shell cksum $(STANDIN_PACKAGES))).tar
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
build image: export VERSION := $(VERSION)
build image: export COMMIT := $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
build image: export DATE := $(shell TZ=UTC git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd 2>/dev/null || echo unknown)

.DEFAULT_GOAL := help

.PHONY: help
help: ## List these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: build
build: ## Build bin/dispatcher, one static binary
	@echo "Building bin/dispatcher $(VERSION) (SQLite, in-process Redis and MQTT broker included);" \
		"the first build takes about a minute."
	@scripts/build bin/dispatcher

.PHONY: image
image: ## Build the image dispatcher:VERSION with Docker
	docker build --build-arg VERSION --build-arg COMMIT --build-arg DATE -t dispatcher:$(VERSION) .

.PHONY: run
run: build ## Run everything in one process, with a simulated fleet (SIMULATE=200 devices)
	@exec bin/dispatcher dev --simulate $(SIMULATE)

.PHONY: dev
dev: build ## The same without a fleet: bring your own devices
	@exec bin/dispatcher dev

# The flags of the race detector. SQLite (translated from C) and the interpreter of Lua are compiled without
# it: they would take ten times as long, and each of them runs under the lock of its caller. Debugging
# information is left out, which saves a tenth of the compile time. Without the paths of the folder, another clone
# on the same machine compiles nothing again. Tests run without vet, which `make lint` includes.
RACE := -race -trimpath -gcflags='all=-dwarf=false' -gcflags='modernc.org/...=-dwarf=false -race=false' \
	-gcflags='github.com/yuin/gopher-lua/...=-dwarf=false -race=false'

# GOGC makes the tests collect garbage less often. GORACE makes a test binary end at once: by default it waits
# a second for data races of goroutines that still run.
test test-long test-slowest test-stalled: export GOGC = 400
test test-long test-slowest test-stalled: export GORACE = atexit_sleep_ms=0

.PHONY: test
test: deps ## Run the tests of every change, with the race detector
	go test -short -vet=off $(RACE) -p 4 -timeout 15m ./...
	cd internal/test/kubernetes && CGO_ENABLED=0 go test -vet=off -count=1 -trimpath -gcflags='all=-dwarf=false -l' -gcflags='std=' ./... # the cache of results does not see files outside of a module

.PHONY: test-long
test-long: deps ## Run all tests: also many cases, large numbers and long faults
	go test -vet=off $(RACE) -p 2 -timeout 60m $$(go list ./... | grep -v internal/test/e2e)
	go test -vet=off $(RACE) -parallel 1 -timeout 90m ./internal/test/e2e # its fleets need two cores to themselves
	cd bench && go test -vet=off $(RACE) ./...

.PHONY: test-stalled
test-stalled: deps ## Run tests while their process is stopped again and again, as on a busy machine (PKG=./slots SEED=1)
	go test -short -vet=off -count=1 $(RACE) -p 1 -timeout 30m -exec "'$(CURDIR)/scripts/stalled' $(SEED)" $(PKG)

.PHONY: test-slowest
test-slowest: deps ## Run the tests anew and show the 20 slowest, in seconds
	@go test -short -vet=off -count=1 $(RACE) -p 3 -timeout 15m -json ./... | sed -nE \
		's/.*"Action":"(pass|fail)","Package":"[^"]*dispatcher\/([^"]*)","Test":"([^"]*)","Elapsed":([0-9.]+).*/\4\t\2\t\3/p' | \
		sort -rn | head -20

.PHONY: planted
planted: deps ## Plant known mistakes one by one and show which test catches each (ROWS='store|slots')
	go run ./internal/test/planted -rows='$(ROWS)'

.PHONY: mutants
mutants: deps ## Make random mistakes one by one and show the share that the tests catch (SEED=1 N=300)
	go run ./internal/test/mutants -seed=$(SEED) -n=$(N)

.PHONY: budget
budget: ## Write the sizes of all rooms to internal/test/budget/budget.txt
	go test ./internal/test/budget -run '^TestNoRoomGrowsUnnoticed$$' -update

.PHONY: lint
lint: $(LINT)-$(GOLANGCI_LINT_VERSION) ## Check style, mistakes and the import rules
	$(LINT)-$(GOLANGCI_LINT_VERSION) run
	cd bench && ../$(LINT)-$(GOLANGCI_LINT_VERSION) run --disable gomoddirectives # it is built with the dispatcher beside it
	cd internal/test/kubernetes && ../../../$(LINT)-$(GOLANGCI_LINT_VERSION) run

.PHONY: fmt
fmt: $(LINT)-$(GOLANGCI_LINT_VERSION) ## Format the code
	$(LINT)-$(GOLANGCI_LINT_VERSION) fmt

# The version is part of the file name, so another version is installed as
# another file.
$(LINT)-$(GOLANGCI_LINT_VERSION):
	@echo "Installing golangci-lint $(GOLANGCI_LINT_VERSION) into bin/; the first time takes some minutes."
	@rm -f $(LINT)*
	@GOBIN="$(CURDIR)/$(BIN)" go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$(GOLANGCI_LINT_VERSION)
	@mv $(LINT) $@

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (30s)
	@set -e; for file in $$(grep -rl --include='*_test.go' '^func Fuzz' .); do \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$$file"); do \
			echo "$$target in $$(dirname "$$file")"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$(dirname "$$file")"; \
		done; \
	done

.PHONY: bench
bench: ## Run the benchmarks (BENCH=pattern)
	go test -run '^$$' -bench '$(BENCH)' -benchmem ./...

.PHONY: bench-makespan
bench-makespan: deps ## Measure batches against the physical limit, and report-and-hope (ROWS='push|long poll')
	@exec go test -count=1 -timeout 60m -v -run '^TestMakespan$$' ./internal/test/makespan -whole -rows='$(ROWS)'

.PHONY: bench-load
bench-load: deps build ## Measure cycles a second, and job queues beside them (ROWS='in process|River', ROUNDS=3, SPAN=10s)
	@cd bench && exec go test -count=1 -timeout 180m -v -run '^TestLoad$$' . -whole -binary "$(CURDIR)/$(BIN)/dispatcher" \
		-rows='$(ROWS)' -rounds=$(ROUNDS) -span=$(SPAN)

.PHONY: env
env: ## Write .env for docker-compose.yml, with random passwords
	@scripts/env

# The test has namespaces of its own: its engine and its containers reach no network, and end with it.
.PHONY: compose-test
compose-test: ## Run docker-compose.yml with a Docker engine and stand-ins of its images (Debian, as root; before each release)
	@scripts/deps docker.io=dockerd mmdebstrap=mmdebstrap iproute2=ip
	@$(MAKE) --no-print-directory $(BIN)/docker-compose-$(COMPOSE_VERSION) $(STANDINS)
	@go mod download # the test copies the modules into the stand-in of the Go image
	@exec go test -count=1 -timeout 60m -v -run '^TestCompose$$' \
		-exec 'unshare --mount --net --pid --fork --kill-child --mount-proc' ./internal/test/compose \
		-compose "$(CURDIR)/$(BIN)/docker-compose-$(COMPOSE_VERSION)" -packages "$(CURDIR)/$(STANDINS)" -folder "$(CURDIR)/$(BIN)/.compose-test"

# `go install` refuses the module, because its go.mod has exclude directives; as the main module it can be built.
$(BIN)/docker-compose-$(COMPOSE_VERSION):
	@echo "Building docker compose $(COMPOSE_VERSION) into bin/; the first time takes some minutes."
	@go build -C "$$(go mod download -json github.com/docker/compose/v2@v$(COMPOSE_VERSION) | jq -r .Dir)" -buildvcs=false \
		-ldflags '-s -w -X github.com/docker/compose/v2/internal.Version=v$(COMPOSE_VERSION)' -o "$(CURDIR)/$@" ./cmd

# The packages of which the stand-ins of images are made. The name of the file has a checksum of their list.
$(STANDINS):
	@echo "Installing Debian for the stand-ins into a file in bin/; the first time takes some minutes."
	@mkdir -p $(BIN)
	@rm -f $(BIN)/standins-*
	@mmdebstrap --quiet --variant=minbase --include="$$(paste -sd, $(STANDIN_PACKAGES))" \
		--setup-hook='mkdir -p "$$1/etc/postgresql-common" && echo "create_main_cluster = false" >"$$1/etc/postgresql-common/createcluster.conf"' \
		$(foreach folder,doc javascript locale man,--dpkgopt='path-exclude=/usr/share/$(folder)/*') bookworm $(@:.tar=.new.tar)
	@mv $(@:.tar=.new.tar) $@

.PHONY: release
release: ## Write the release of the commit to dist/: programs, packages, licences, SBOMs, checksums (MINISIGN_KEY=FILE signs it)
	@scripts/release

.PHONY: release-check
release-check: ## Build the release in two folders as two users, and compare the hashes (as root)
	@CI=true exec go test -count=1 -timeout 90m -v -run '^TestReleaseIsReproducible$$' ./internal/test/release -whole

.PHONY: release-test
release-test: deps ## Install, start, upgrade under load and remove the packages in empty Debian roots (as root; BEFORE=commit)
	@CI=true exec go test -count=1 -timeout 90m -v -run '^TestPackages$$' ./internal/test/release -whole -before '$(BEFORE)'

.PHONY: docs
docs: ## Write docs/configuration.md from the settings
	go test ./internal/app -run '^TestReferenceIsTheSettings$$' -update

.PHONY: deps
deps: ## Install what the tests need (Debian as root; elsewhere: say what)
	@scripts/deps

.PHONY: clean
clean: ## Remove what was built (the data of `dev` stays)
	rm -rf bin dist
