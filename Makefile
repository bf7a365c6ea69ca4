# Every target needs Go 1.26 or newer and make; the race detector of `make test`
# needs a C compiler. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

BIN  := bin/otelcol-hotprofile
# The second distribution, for Kubernetes and clouds.
BIN_KUBERNETES := $(BIN)-kubernetes
TOOL := go tool -modfile=internal/tools/go.mod

# A test that fails runs at most twice more, because many tests wait for other programs on
# machines that others use. The summary at the end names each such test. A crash, a data
# race or a fourth failure runs nothing again.
TEST := $(TOOL) gotestsum --hide-summary=skipped --rerun-fails=2 --rerun-fails-max-failures=3 --rerun-fails-abort-on-data-race
# What is built with the same flags shares compiled packages, so that the builder and
# the distribution compile the standard library once. No DWARF: it is stripped anyway.
LEAN := CGO_ENABLED=0 GOFLAGS="$(GOFLAGS) -trimpath -gcflags=all=-dwarf=false -ldflags=-s"
# builder-config.yaml is the only place of the version.
VERSION = $(shell awk '$$1 == "version:" {print $$2; exit}' builder-config.yaml)
EPOCH = $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
GO_FILES := $(shell git ls-files -co --exclude-standard '*.go' 2>/dev/null || find . -name '*.go')
# What packages embed.
EMBEDDED := $(shell find extension/*/templates extension/consoleextension/internal/web/static extension/consoleextension/internal/web/templates -type f)
COMPONENTS := receiver/cpuprofilerreceiver receiver/hotunitsreceiver processor/cputriggerprocessor exporter/consoleexporter exporter/pprofexporter extension/consoleextension extension/hotunitsextension extension/inlineattributesextension extension/languagesextension
FUZZTIME ?= 20s
BENCH_MINUTES ?= 1
BENCH_FLAGS ?=
CHART_FLAGS ?=
SOAK_MINUTES ?= 30
# Most of the time tests wait, so that two packages a CPU are tested at once.
WAITING = $$((2 * $$(getconf _NPROCESSORS_ONLN)))
# Tests with this name compare with what the kernel counts, or have few samples: they
# need quiet CPUs.
KERNEL_TESTS := ^TestKernel
# These have one goroutine and much to do, for which the race detector takes ten times as
# long.
BULK_TESTS := ^TestBulk
# SQLite is C code that was translated to Go. Its memory belongs to SQLite alone, and the race
# detector makes it ten times as slow. Stacks of failures need no DWARF, as in LEAN.
RACE := -race -gcflags=all=-dwarf=false -gcflags=modernc.org/sqlite/lib=-race=false -gcflags=modernc.org/libc=-race=false
# The slowest packages start first, so that no CPU is idle at the end.
SLOW := $(addprefix ./,extension/consoleextension/internal/store receiver/cpuprofilerreceiver processor/cputriggerprocessor \
	receiver/cpuprofilerreceiver/internal/symbolizer receiver/cpuprofilerreceiver/internal/sampler/allocs extension/consoleextension/internal/web exporter/pprofexporter \
	$(addprefix receiver/cpuprofilerreceiver/internal/,processes unwind sampler/oncpu sampler/offcpu))
packages_of = $$(grep -rl --include='*_test.go' '^func $(1:^%=%)' . | xargs -n1 dirname | sort -u)

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / {printf "  %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Prints a line for a step, runs it, and prints how long it took. Its output is
# shown when it fails.
step = @mkdir -p bin; printf '%s ... ' $(1); begin=$$SECONDS; \
	if ($(2)) >bin/step.log 2>&1; then echo "$$((SECONDS - begin)) s"; else echo failed; cat bin/step.log >&2; exit 1; fi

.PHONY: run
run: build ## build the distribution and run it on config/quickstart.yaml beside a demo load, until Ctrl-C
	$(call step,"compile the demo",$(LEAN) go build -ldflags= -o bin/ ./test/demo ./test/load)
	@exec bin/demo -collector $(BIN) -load bin/load -config config/quickstart.yaml

# The tools run on this system, whatever the distribution is built for.
unexport GOOS
.PHONY: build
build: $(BIN)$(if $(filter windows,$(GOOS)),.exe) ## build the distribution at bin/otelcol-hotprofile; GOOS=windows builds bin/otelcol-hotprofile.exe

.PHONY: build-kubernetes
build-kubernetes: $(BIN_KUBERNETES) ## build the distribution for Kubernetes and clouds at bin/otelcol-hotprofile-kubernetes

$(BIN): bin/src/main.go
	$(call step,"compile $@ (a minute or two the first time)",cd $(<D) && $(LEAN) go build -o $(CURDIR)/$@ .)

$(BIN).exe: bin/src/main.go
	$(call step,"compile $@ (some minutes the first time)",cd $(<D) && GOOS=windows $(LEAN) go build -o $(CURDIR)/$@ .)

$(BIN_KUBERNETES): bin/src-kubernetes/main.go
	$(call step,"compile $@ (some minutes the first time)",cd $(<D) && $(LEAN) go build -o $(CURDIR)/$@ .)

bin/src/main.go: builder-config.yaml
bin/src-kubernetes/main.go: bin/builder-config.kubernetes.yaml
bin/src/main.go bin/src-kubernetes/main.go: go.mod go.sum $(wildcard internal/tools/noeks/*) $(filter-out %_test.go test/% internal/tools/%,$(GO_FILES)) $(EMBEDDED)
	$(call step,"compile the OpenTelemetry Collector Builder (half a minute the first time)",$(LEAN) $(TOOL) builder version)
	@rm -f $(@D)/go.mod
	$(call step,"generate $(@D)",$(LEAN) $(TOOL) builder --config $(filter %.yaml,$^) --skip-compilation || test -f $(@D)/go.mod)
	$(call step,"download its modules (half a minute the first time)",cd $(@D) && test -f go.mod && $(LEAN) go mod tidy -e)
	@touch $@ # the builder writes only what changed

# The distribution for nodes, with what builder-config.yaml has in comments.
bin/builder-config.kubernetes.yaml: builder-config.yaml Makefile
	@mkdir -p bin
	@sed -e '/^#/d' -e 's/name: otelcol-hotprofile/&-kubernetes/' -e 's#bin/src#&-kubernetes#' \
		-e 's/# kubernetes: gomod:/- gomod:/' $< >$@

# An archive holds a folder of its name with all that an installation needs. Times,
# owners and order are fixed, so that two runs write the same bytes.
archive = $(2)_$(VERSION)_linux_$(1)
DIST = $(foreach name,$(notdir $(BIN) $(BIN_KUBERNETES)),$(call archive,amd64,$(name)) $(call archive,arm64,$(name)))
IMAGE_ARCH ?= amd64
IMAGE_DIST = $(call archive,$(IMAGE_ARCH),$(notdir $(BIN_KUBERNETES)))
# The licences of the modules of a program, in its folder.
LICENSES = CGO_ENABLED=0 go list -deps -json=Dir,ImportPath,Standard,Module . | go run -C $(CURDIR)/internal/tools/release ./licenses
RELEASED = LICENSE README.md CHANGELOG.md SECURITY.md config deploy

dist/%: $(BIN) $(BIN_KUBERNETES) $(shell find LICENSE README.md CHANGELOG.md SECURITY.md config deploy -type f)
	@rm -rf $@ && mkdir -p $@
	cd $(dist_source) && GOOS=linux GOARCH=$(lastword $(subst _, ,$*)) $(LEAN) \
		go build -buildvcs=false -o $(CURDIR)/$@/$(dist_name) .
	cd $(dist_source) && GOOS=linux GOARCH=$(lastword $(subst _, ,$*)) $(LICENSES) >$(CURDIR)/$@/THIRD_PARTY_LICENSES.txt
	cp -r $(RELEASED) $@/

dist/%: dist_name = $(firstword $(subst _, ,$*))
dist/%: dist_source = bin/src$(patsubst otelcol-hotprofile%,%,$(dist_name))

dist/%.tar.gz: dist/%
	tar --sort=name --mtime=@$(EPOCH) --owner=0 --group=0 --numeric-owner --mode='u=rwX,go=rX' -C dist -cf - $* | gzip -9n >$@

# Vet is off, because make lint runs it. A test program that ends waits a second for reports
# of the race detector unless GORACE has a shorter time. The tests of traces have one goroutine
# and import few packages. Other tests without the race detector would compile most packages twice.
.PHONY: test
test: ## run the unit and integration tests under the race detector; they pass on any machine, busy or not
	GORACE=atexit_sleep_ms=10 $(TEST) --format=standard-quiet --packages="$$(go list $(SLOW) ./... | grep -Ev '/test/(e2e|traces)$$' | xargs)" -- $(RACE) -vet=off -p $(WAITING) -timeout 15m -skip '$(KERNEL_TESTS)|$(BULK_TESTS)'
	go test -vet=off ./test/traces
	go test -C internal/tools/release -vet=off ./...
	GORACE=atexit_sleep_ms=10 go test -C extension/languagesextension $(RACE) -vet=off ./...

.PHONY: test-bulk
test-bulk: ## run the tests of days of data, thousands of units, random lives and whole files, without the race detector
	go test -vet=off -timeout 8m -run '$(BULK_TESTS)' $(call packages_of,$(BULK_TESTS))

.PHONY: test-kernel
test-kernel: ## run the comparisons with the kernel's own figures, one package at a time; they need a machine that does nothing else
	$(TEST) --format=standard-quiet --packages="$$(echo $(call packages_of,$(KERNEL_TESTS)))" -- $(RACE) -p 1 -timeout 20m -run '$(KERNEL_TESTS)'

# A collector of the last release that wrote attributes inline, as a peer.
PEER := bin/peer-0.159
$(PEER): test/e2e/testdata/peer/builder-config.yaml
	$(call step,"compile $@ (a minute the first time)",$(LEAN) go run go.opentelemetry.io/collector/cmd/builder@v0.159.0 --config $< --skip-compilation \
		&& cd bin/src-peer && $(LEAN) go build -o $(CURDIR)/$@ .)

.PHONY: e2e
e2e: build build-kubernetes $(PEER) ## run the built distributions against real processes and cgroups; after build-ebpf that collector, too
	HOTPROFILE_EBPF_COLLECTOR=$(abspath $(wildcard $(BIN)-ebpf)) HOTPROFILE_PEER=$(CURDIR)/$(PEER) HOTPROFILE_COLLECTOR=$(CURDIR)/$(BIN) HOTPROFILE_COLLECTOR_KUBERNETES=$(CURDIR)/$(BIN_KUBERNETES) $(TEST) --format=standard-verbose --packages=./test/e2e/... -- -count=1 -timeout 25m -parallel 3

# Packages with code for Windows.
OF_WINDOWS := ./internal/procfs ./internal/monitor
export WINEDEBUG := -all
.PHONY: test-windows
test-windows: $(BIN).exe ## run the tests of Windows under Wine, and the distribution for Windows; needs wine64 and gcc-mingw-w64-x86-64
	HOTPROFILE_COLLECTOR_WINDOWS=$(CURDIR)/$(BIN).exe HOTPROFILE_COLLECTOR=$(CURDIR)/$(BIN).exe HOTPROFILE_OF_WINDOWS="$(OF_WINDOWS)" $(TEST) --format=standard-verbose --packages=./test/e2e -- -count=1 -timeout 10m -run '^TestWindows'

.PHONY: peers
peers: build ## send profiles to a real Pyroscope 2 through a compaction, and compare the sums; as root, with PYROSCOPE=PATH of its program
	HOTPROFILE_PYROSCOPE=$(abspath $(PYROSCOPE)) HOTPROFILE_COLLECTOR=$(CURDIR)/$(BIN) go test -count=1 -timeout 12m -v -run TestPyroscopeKeepsAllSamples ./test/e2e/

.PHONY: pictures
pictures: build ## take the pictures of the console in docs/images/console again; as root, with Chromium and Node.js
	HOTPROFILE_PICTURES=$(CURDIR)/docs/images/console HOTPROFILE_COLLECTOR=$(CURDIR)/$(BIN) go test -count=1 -v -run TestTheConsoleInABrowser ./test/e2e/

.PHONY: generate
generate: ## regenerate what mdatagen writes from each metadata.yaml
	@for dir in $(COMPONENTS); do \
		(cd "$$dir" && go tool -modfile="$(CURDIR)/internal/tools/go.mod" mdatagen metadata.yaml); \
	done
	@find $(COMPONENTS) -name 'generated_*.go' -exec $(TOOL) gofumpt -w {} +

.PHONY: update
update: ## move to the newest release of the collector that the module proxy serves; CORE=v0.163.0 names an older one
	@internal/tools/update.sh

.PHONY: fmt
fmt: ## format the code
	$(TOOL) gofumpt -w $(GO_FILES)

.PHONY: lint
lint: ## check the code: linters, and that other systems still build
	$(TOOL) golangci-lint run ./...
	$(TOOL) chloggen validate --config .chloggen/config.yaml
	GOOS=darwin GOARCH=arm64 go vet $$(GOOS=darwin go list ./... | grep -v /test/)
	GOOS=windows GOARCH=amd64 go vet $$(GOOS=windows go list ./... | grep -v /test/)
	GOOS=linux GOARCH=arm64 go vet ./...

.PHONY: changelog-new changelog
changelog-new: ## make .chloggen/NAME.yaml, which describes a change to users
	$(TOOL) chloggen new --config .chloggen/config.yaml --filename $(NAME)

changelog: ## move what .chloggen describes into CHANGELOG.md, as the release VERSION
	$(TOOL) chloggen update --config .chloggen/config.yaml --version $(VERSION)

HELM := bin/helm
$(HELM): internal/tools/chart/go.mod
	$(call step,"compile $@ (two minutes the first time)",$(LEAN) go build -C internal/tools/chart -o $(CURDIR)/$@ helm.sh/helm/v4/cmd/helm)

.PHONY: chart
chart: $(HELM) ## lint deploy/helm/hotprofile, render every variant and decode it strictly into the types of the Kubernetes API; CHART_FLAGS=-update keeps what the end-to-end test reads
	HOTPROFILE_HELM=$(CURDIR)/$(HELM) $(LEAN) go test -C internal/tools/chart -count=1 ./... $(CHART_FLAGS)

# Built from their modules, the programs do not know their version.
CLUSTER := $(addprefix bin/kubernetes/,kube-apiserver kube-controller-manager kube-scheduler kubelet)
$(CLUSTER) &: test/kubernetes/go.mod
	$(call step,"compile $(notdir $(CLUSTER)) (ten minutes the first time)",$(LEAN) go build -C test/kubernetes -ldflags="-s -X k8s.io/component-base/version.gitVersion=v1.37.2" -o $(CURDIR)/bin/kubernetes/ $(addprefix k8s.io/kubernetes/cmd/,$(notdir $(CLUSTER))))

.PHONY: kubernetes
kubernetes: $(CLUSTER) $(HELM) build build-kubernetes ## as root: install the chart in a real cluster of one node, and try what happens to pods there; takes ten minutes after the build
	$(call step,"compile the test",$(LEAN) go build -o bin/ ./test/load && $(LEAN) go build -C test/kubernetes -o $(CURDIR)/bin/ ./pod && $(LEAN) go test -C test/kubernetes -c -o $(CURDIR)/bin/kubernetes/cluster.test .)
	test/kubernetes/cluster.sh $(CURDIR)/bin/kubernetes/cluster.test -bin $(CURDIR)/bin

.PHONY: opamp
opamp: build ## change policies by the OpAMP supervisor and a server of the test; takes a minute after the build
	$(call step,"compile the supervisor and a collector for it (three minutes the first time)",$(LEAN) test/opamp/build.sh && $(LEAN) go build -o bin/ ./test/load)
	HOTPROFILE_BIN=$(CURDIR)/bin $(LEAN) go test -C test/opamp -count=1 -v ./...

.PHONY: traces
traces: ## play the corpus of CPU traces, and write the tables of docs/trigger-accuracy.md
	go test ./test/traces -update

.PHONY: record-traces
record-traces: ## as root, an hour: record every trace of the corpus that is recorded, in cgroups of its own
	go run ./test/traces/record -out test/traces/recorded $$(ls test/traces/recorded/*.csv | xargs -n1 basename -s .csv | sed 's#.*#test/traces/schedules/&.txt#')

.PHONY: bench
bench: build ## as root, twenty minutes: what hotprofile costs, each figure beside a baseline of the same run, as Markdown
	@go build -o bin/ ./test/bench ./test/load
	@bin/bench -collector $(BIN) -load bin/load -minutes $(BENCH_MINUTES) $(BENCH_FLAGS)

.PHONY: soak
soak: build ## as root: run the distribution under faults for SOAK_MINUTES (30); the last line has the outcome of every sample
	@go build -o bin/ ./test/soak ./test/dotnetsender
	@bin/soak -collector $(BIN) -sender bin/dotnetsender -minutes $(SOAK_MINUTES)

.PHONY: vm
vm: ## as root: every test with a kernel in it, the systemd unit and CPUs that go and come, in a guest with cgroup v2 alone (test/vm/README.md)
	test/vm/vm.sh all

.PHONY: cover
cover: ## print how many statements of each component the unit tests cover; generated files do not count
	@mkdir -p bin; for dir in $(COMPONENTS) converter/profilesconverter internal; do \
		(cd $$dir && go test -timeout 15m -skip '$(KERNEL_TESTS)|$(BULK_TESTS)' -coverpkg=./... -coverprofile=$(CURDIR)/bin/cover.all ./... >$(CURDIR)/bin/cover.log 2>&1 \
			|| { cat $(CURDIR)/bin/cover.log >&2; exit 1; }; \
		grep -vE '/generated_|/metadatatest/' $(CURDIR)/bin/cover.all >$(CURDIR)/bin/cover.out; \
		printf '%-42s %s\n' $$dir "$$(go tool cover -func=$(CURDIR)/bin/cover.out | awk 'END {print $$NF}')"); \
	done

.PHONY: fuzz
fuzz: ## fuzz every parser of outside bytes for FUZZTIME (20s) each
	@for pkg in $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do \
		for target in $$(grep -ho '^func Fuzz[A-Za-z0-9_]*' $$pkg/*_test.go | sed 's/func //'); do \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $$pkg; \
		done; \
	done

.PHONY: dist
dist: $(DIST:%=dist/%.tar.gz) dist/$(WINDOWS).zip ## write the archives of a release, both distributions for amd64 and arm64, the first for Windows too, and their checksums to dist/; two runs write the same bytes; needs zip
	cd dist && sha256sum $(DIST:%=%.tar.gz) $(WINDOWS).zip >checksums.txt && cat checksums.txt

WINDOWS = $(notdir $(BIN))_$(VERSION)_windows_amd64
dist/$(WINDOWS).zip: $(BIN).exe config/windows.yaml
	@rm -rf dist/$(WINDOWS) $@ && mkdir -p dist/$(WINDOWS)/config
	cd bin/src && GOOS=windows $(LICENSES) >$(CURDIR)/dist/$(WINDOWS)/THIRD_PARTY_LICENSES.txt
	cp $(BIN).exe LICENSE README.md CHANGELOG.md SECURITY.md dist/$(WINDOWS)/ && cp config/windows.yaml dist/$(WINDOWS)/config/
	find dist/$(WINDOWS) -exec touch -d @$(EPOCH) {} +
	cd dist && find $(WINDOWS) -type f | LC_ALL=C sort | TZ=UTC zip -X -9 -q -@ $(WINDOWS).zip

# Packages are made in the folders of the archives; deploy/packages/nfpm.yaml describes them.
# RPM_KEY and APK_KEY name keys to sign them with: see docs/releasing.md. An apk has the time
# and mode of its script.
nfpm = cd dist/$(call archive,$(1),$(notdir $(BIN))) && chmod 755 $(APK_SCRIPT) && touch -d @$(EPOCH) $(APK_SCRIPT) && ARCH=$(1) VERSION=$(VERSION) SOURCE_DATE_EPOCH=$(EPOCH) ../../bin/nfpm package -f deploy/packages/nfpm.yaml -t .. -p
APK_SCRIPT := deploy/packages/preinstall.sh
.PHONY: packages
packages: $(foreach arch,amd64 arm64,dist/$(call archive,$(arch),$(notdir $(BIN)))) ## write deb, rpm and apk packages of the distribution for nodes, for amd64 and arm64, to dist/; two runs write the same bytes
	go build -C internal/tools/packages -o $(CURDIR)/bin/nfpm github.com/goreleaser/nfpm/v2/cmd/nfpm
	gzip -9n <deploy/packages/otelcol-hotprofile.8 >bin/otelcol-hotprofile.8.gz
	rm -f dist/*.{deb,rpm,apk}
	for format in deb rpm apk; do ($(call nfpm,amd64) $$format); ($(call nfpm,arm64) $$format); done
	cd dist && sha256sum *.deb *.rpm *.apk >checksums-packages.txt && cat checksums-packages.txt

.PHONY: packages-test
packages-test: packages ## as root: install, run, upgrade and remove the packages in a Debian of debootstrap; needs debootstrap and rpm
	@go build -o bin/ ./test/load
	VERSION=$(VERSION) EPOCH=$(EPOCH) test/packages/packages.sh

.PHONY: image
image: dist/$(IMAGE_DIST) ## build the container image otelcol-hotprofile:VERSION, with the distribution for Kubernetes, for the architecture IMAGE_ARCH (amd64)
	@rm -rf dist/image && mkdir -p dist/image/etc/ssl/certs dist/image/etc/otelcol-hotprofile dist/image/licenses
	cp dist/$(IMAGE_DIST)/$(notdir $(BIN_KUBERNETES)) dist/image/otelcol-hotprofile
	cp dist/$(IMAGE_DIST)/{LICENSE,THIRD_PARTY_LICENSES.txt} dist/image/licenses/
	cp config/kubernetes.yaml dist/image/etc/otelcol-hotprofile/config.yaml
	go run -C internal/tools/release ./caroots >dist/image/etc/ssl/certs/ca-certificates.crt
	docker build --platform linux/$(IMAGE_ARCH) -t otelcol-hotprofile:$(VERSION) -f Dockerfile dist/image

# The parts of this repository are in the program itself; their names there are folders.
OTHERS = def others: map(select(contains("/../") or startswith("..") | not)); \
	.components |= map(select(.name | startswith("..") | not)) | .dependencies |= map(select(.ref | contains("/../") | not) | .dependsOn |= (. // [] | others)) | \
	.compositions[].dependencies |= (. // [] | others)

.PHONY: sbom
sbom: $(DIST:%=dist/%) ## list the modules of each released binary in dist/*.cdx.json (CycloneDX); needs jq
	for name in $(DIST); do \
		go -C internal/tools/release tool cyclonedx-gomod bin -json -noserial -notimestamp -std -version $(VERSION) $(CURDIR)/dist/$$name/$${name%%_*} | jq '$(OTHERS)' >dist/$$name.cdx.json; \
	done

.PHONY: vuln
vuln: build build-kubernetes ## look for known vulnerabilities in the code and in the built distribution
	go build -C internal/tools/release -o $(CURDIR)/bin/govulncheck golang.org/x/vuln/cmd/govulncheck
	@check() { \
		local rc=0; bin/govulncheck "$$@" || rc=$$?; \
		if ((rc == 3)); then exit 3; fi; \
		if ((rc)); then \
			echo "govulncheck could not look: nothing is known about vulnerabilities."; \
			echo "Its database is $${GOVULNDB:-https://vuln.go.dev}; where that cannot be reached, name a mirror or an unpacked copy: make vuln GOVULNDB=https://… or file:///…"; \
			exit 1; \
		fi; \
	}; check ./...; check -mode=binary $(BIN); check -mode=binary $(BIN_KUBERNETES)

# The profiler's programs for the kernel have a licence of their own, GPL-2.0.
EBPF_LICENSES = CGO_ENABLED=0 go list -mod=mod -deps -json=Dir,ImportPath,Standard,Module . | go run -C $(CURDIR)/internal/tools/release ./licenses && \
	printf '\n%s\n' 'Its programs for the kernel, support/ebpf of go.opentelemetry.io/ebpf-profiler, are under this licence:' && \
	cat "$$(go list -mod=mod -m -f '{{.Dir}}' go.opentelemetry.io/ebpf-profiler)/support/ebpf/LICENSE"

# The builder fails after it wrote go.mod when a module of the profiler's own tests
# is missing; tidy -e does not.
.PHONY: build-ebpf
build-ebpf: ## build a collector with OpenTelemetry's eBPF profiler at bin/otelcol-hotprofile-ebpf, and its licences beside it; see docs/ebpf-profiler.md
	@rm -rf bin/src-ebpf
	$(call step,"compile the OpenTelemetry Collector Builder",$(LEAN) $(TOOL) builder version)
	$(call step,"generate bin/src-ebpf",$(LEAN) $(TOOL) builder --config builder-config.ebpf.yaml --skip-compilation || test -f bin/src-ebpf/go.mod)
	$(call step,"download its modules",cd bin/src-ebpf && $(LEAN) go mod tidy -e)
	$(call step,"compile bin/otelcol-hotprofile-ebpf",cd bin/src-ebpf && $(LEAN) go build -mod=mod -o ../otelcol-hotprofile-ebpf .)
	$(call step,"write bin/otelcol-hotprofile-ebpf.licenses.txt",cd bin/src-ebpf && { $(EBPF_LICENSES); } >../otelcol-hotprofile-ebpf.licenses.txt)

.PHONY: clean
clean: ## remove what was built
	rm -rf bin dist
