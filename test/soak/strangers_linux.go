// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/template"
	"time"

	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/hosttest/scratch"
	"github.com/hotprofile/hotprofile/test/otlppeer"
)

// Bounds under the attack of strangers: the collector's resident memory, and its CPU time
// beyond sampling, as a share of a core.
// The collector is told of four fifths of that memory, as in deploy.
const (
	attackedMemory = 256 << 20
	attackedHeap   = "205MiB"
	attackedCPU    = 0.10
)

// attackTime is the length of the attack, quietTime the time before it, in which the hot
// program runs beside the collector alone.
const (
	attackTime = time.Minute
	quietTime  = 20 * time.Second
)

// attacks are the arguments of the programs that run at once, after their kind and time.
var attacks = [][]string{
	{"names", "30", "1"},
	{"names", "10", "3000"},
	{"mappings", "200", "8192"},
	{"files", "1", "300"},
}

//go:embed testdata/strangers.c
var strangersSource []byte

// strangersConfig is the whole host with every default, and the processor beside it.
var strangersConfig = template.Must(template.New("strangers").Parse(strings.TrimLeft(`
extensions:
  hot_units:
receivers:
  cpu_profiler:
processors:
  cpu_trigger:
exporters:
  otlp_grpc: {endpoint: "127.0.0.1:{{.Backend}}", tls: {insecure: true}}
  debug:
service:
  extensions: [hot_units]
  telemetry:
    logs: {encoding: json, sampling: {enabled: false}}
    metrics:
      level: detailed
      readers:
        - pull: {exporter: {prometheus: {host: 127.0.0.1, port: {{.Metrics}}}}}
  pipelines:
    profiles:
      receivers: [cpu_profiler]
      exporters: [otlp_grpc]
    profiles/gated:
      receivers: [cpu_profiler]
      processors: [cpu_trigger]
      exporters: [debug]
`, "\n")))

// attack holds the cost of the collector while strangers attacked, beside a hot program.
type attack struct {
	ran             bool
	resident        int64   // the most
	quiet, attacked float64 // CPU time of the collector, as a share of a core
	// sampling is the part that max_overhead bounds: in the first twenty seconds it may be
	// more, until the frequency is lowered.
	sampling            float64
	named, unnamed      int64 // samples of the hot program, from before the attack on
	limits              map[string]int64
	memory              map[string]int64
	firstUnnamedReasons []string
}

// strangers has the attack, and the hot program in a cgroup of its own.
func (s *soak) strangers(ctx context.Context) (err error) {
	progress("strangers attack for %v", attackTime)
	program := filepath.Join(s.dir, "strangers")
	if err := os.WriteFile(program+".c", strangersSource, 0o600); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "cc", "-O1", "-fno-omit-frame-pointer", "-o", program, program+".c").CombinedOutput(); err != nil {
		return fmt.Errorf("compile the strangers: %w\n%s", err, out)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	seen := &witness{attack: &s.attack}
	peer := otlppeer.New(seen.take)
	if err := peer.Start(); err != nil {
		return err
	}
	defer peer.Stop()
	group := func(name string, cores float64) (*scratch.Cgroup, error) {
		g, err := scratch.Make(fmt.Sprintf("hotprofile-soak-%d-%s", os.Getpid(), name))
		if err != nil {
			return nil, err
		}
		return g, g.SetQuota(cores)
	}
	hot, err := group("hot", 0.5)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hot.Remove()) }()
	if err := hot.Favour(8); err != nil {
		return err
	}
	hostile, err := group("strangers", 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hostile.Remove()) }()

	var running sync.WaitGroup
	defer running.Wait()
	begin := func(g *scratch.Cgroup, service, name string, args ...string) (*exec.Cmd, error) {
		cmd := g.Command(name, args...)
		cmd.Env = append(os.Environ(), "OTEL_SERVICE_NAME="+service)
		cmd.Stderr = os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		return cmd, cmd.Start()
	}
	load, err := begin(hot, hotService, self, "-role", "flooding")
	if err != nil {
		return err
	}
	defer func() {
		_ = load.Process.Kill()
		_ = load.Wait()
	}()
	free, err := freePorts(1)
	if err != nil {
		return err
	}
	c, err := startCollector(ctx, strangersConfig, s.binary, "strangers", s.group, settings{Dir: s.dir, Backend: peer.Port, Metrics: free[0], GoMemory: attackedHeap})
	if err != nil {
		return err
	}
	defer c.kill()

	if err := sleep(ctx, quietTime/2); err != nil { // it has read what was there
		return err
	}
	quiet, err := s.span(ctx, c, quietTime)
	if err != nil {
		return err
	}
	seen.begin()
	for _, a := range attacks {
		cmd, err := begin(hostile, "strangers", program, append([]string{a[0], fmt.Sprint(attackTime.Seconds())}, append(a[1:], s.dir)...)...)
		if err != nil {
			return err
		}
		running.Go(func() { _ = cmd.Wait() }) // killed with its cgroup if it is still there
	}
	attacked, err := s.span(ctx, c, attackTime)
	if err != nil {
		return err
	}
	figures, err := c.scrape(ctx)
	if err != nil {
		return err
	}
	if err := c.terminate(); err != nil { // it exports what is left
		return err
	}
	seen.mu.Lock()
	defer seen.mu.Unlock()
	s.attack.ran = true
	s.attack.quiet, s.attack.attacked, s.attack.sampling = quiet.total, attacked.total, attacked.sampling
	s.attack.limits = figures.by("otelcol_cpu_profiler_limits_hit", "limit")
	s.attack.memory = figures.by("otelcol_cpu_profiler_memory", "what")
	return nil
}

// taken is the CPU time of the collector in a span of time, as shares of a core.
type taken struct{ total, sampling float64 }

// span weighs the collector for a while.
func (s *soak) span(ctx context.Context, c *collector, d time.Duration) (taken, error) {
	before, err := c.spent(ctx)
	if err != nil {
		return taken{}, err
	}
	began := time.Now()
	for time.Since(began) < d {
		if err := errors.Join(sleep(ctx, 200*time.Millisecond), c.running()); err != nil {
			return taken{}, err
		}
		resident, err := c.resident()
		if err != nil {
			return taken{}, err
		}
		s.attack.resident = max(s.attack.resident, resident)
	}
	after, err := c.spent(ctx)
	elapsed := time.Since(began).Seconds()
	return taken{(after.total - before.total) / elapsed, (after.sampling - before.sampling) / elapsed}, err
}

// spent returns the collector's CPU time until now, in seconds, and what of it
// max_overhead bounds.
func (c *collector) spent(ctx context.Context) (taken, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid))
	if err != nil {
		return taken{}, err
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	var user, system float64
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		return taken{}, fmt.Errorf("read the CPU time of the collector: %w", err)
	}
	f, err := c.scrape(ctx)
	if err != nil {
		return taken{}, err
	}
	const ticks = 100 // USER_HZ, on every architecture that Go has
	out := taken{total: (user + system) / ticks}
	for _, s := range f {
		if s.name == "otelcol_cpu_profiler_cpu_time" {
			out.sampling += s.value
		}
	}
	return out, nil
}

// hotService is the service of the hot program.
const hotService = "soak-hot"

// witness looks at the profiles of the hot program.
type witness struct {
	mu     sync.Mutex
	attack *attack
	began  bool
}

// begin counts from now on.
func (w *witness) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.began = true
}

func (w *witness) take(_ context.Context, pd pprofile.Profiles) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.began {
		return nil
	}
	d := pd.Dictionary()
	for _, rp := range pd.ResourceProfiles().All() {
		service, ok := rp.Resource().Attributes().Get("service.name")
		if !ok || service.Str() != hotService {
			continue
		}
		for _, sp := range rp.ScopeProfiles().All() {
			for _, p := range sp.Profiles().All() {
				for _, sample := range p.Samples().All() {
					n := int64(max(sample.TimestampsUnixNano().Len(), 1))
					if missing := nameless(d, sample); missing != "" {
						w.attack.unnamed += n
						if len(w.attack.firstUnnamedReasons) < 5 {
							w.attack.firstUnnamedReasons = append(w.attack.firstUnnamedReasons, missing)
						}
					} else {
						w.attack.named += n
					}
				}
			}
		}
	}
	return nil
}

// nameless returns what of a sample's stack has no name; "" if all of it has.
func nameless(d pprofile.ProfilesDictionary, s pprofile.Sample) string {
	stack := d.StackTable().At(int(s.StackIndex())).LocationIndices()
	if stack.Len() == 0 {
		return "a sample without a stack"
	}
	for _, i := range stack.All() {
		l := d.LocationTable().At(int(i))
		if l.Lines().Len() == 0 || d.FunctionTable().At(int(l.Lines().At(0).FunctionIndex())).NameStrindex() == 0 {
			file := d.StringTable().At(int(d.MappingTable().At(int(l.MappingIndex())).FilenameStrindex()))
			return fmt.Sprintf("%#x of %q", l.Address(), file)
		}
	}
	return ""
}

// faults lists the bounds that did not hold.
func (a *attack) faults() (all []string) {
	if !a.ran {
		return nil
	}
	fault := func(format string, args ...any) { all = append(all, "strangers: "+fmt.Sprintf(format, args...)) }
	if a.resident > attackedMemory {
		fault("%d MiB were resident, more than %d", a.resident>>20, attackedMemory>>20)
	}
	if beyond := a.attacked - a.sampling; beyond > attackedCPU {
		fault("beyond sampling the collector took %.1f %% of a core, more than %.0f %%", 100*beyond, 100*attackedCPU)
	}
	if a.named == 0 || a.unnamed > 0 {
		fault("of the hot program's samples %d have all names and %d do not: %s", a.named, a.unnamed, strings.Join(a.firstUnnamedReasons, ", "))
	}
	return all
}

func (s *soak) printAttack(w io.Writer) {
	a := &s.attack
	if !a.ran {
		return
	}
	fmt.Fprintf(w, "## %v of strangers beside a hot program\n\n", attackTime)
	head(w, "", "")
	row(w, "resident MiB, at most", a.resident>>20)
	row(w, "CPU without them, % of a core", fmt.Sprintf("%.1f", 100*a.quiet))
	row(w, "CPU under attack, % of a core", fmt.Sprintf("%.1f", 100*a.attacked))
	row(w, "of that sampling and names", fmt.Sprintf("%.1f", 100*a.sampling))
	row(w, "samples of the hot program with all names", a.named)
	row(w, "samples of the hot program without", a.unnamed)
	for _, what := range slices.Sorted(maps.Keys(a.memory)) {
		row(w, "remembered, KiB: "+what, a.memory[what]>>10)
	}
	for _, limit := range slices.Sorted(maps.Keys(a.limits)) {
		row(w, "at a limit: "+limit, a.limits[limit])
	}
	fmt.Fprintln(w)
}
