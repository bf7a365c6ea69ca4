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
	"math"
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

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/test/hosttest/scratch"
	"github.com/hotprofile/hotprofile/test/otlppeer"
)

// Bounds under the attack of strangers: the collector's CPU time beyond reading samples, as
// a share of a core, and by how much the CPU time that a hot program's profile has may
// differ from the kernel's count, as a share of it.
const (
	attackedCPU   = 0.20 // 9 to 16 % were measured on different machines; the rest is for what else the machine does
	attackedError = 0.03 // and what chance does to so many samples
	// attackedNamed is the share of the hot program's samples that have all names. Where
	// records about processes are lost, names may be missing for seconds.
	attackedNamed = 0.8
	// attackedCut is the share of the hot program's stacks that may be truncated: Go's
	// scheduler runs on stacks of its own.
	attackedCut = 0.01
)

// allowance is the memory that a collector may have, the GOMEMLIMIT that it runs with, which
// is four fifths of that, and the length of its attack.
type allowance struct {
	resident int64
	heap     string
	lasts    time.Duration
}

// allowances are attacked one after the other: what a collector needs, and that of deploy.
// The short attack shows what memory it takes; what files cost at first, from the time that
// their budget has saved, is too large a part of its CPU time for a bound.
var allowances = []allowance{{256 << 20, "205MiB", time.Minute}, {512 << 20, "410MiB", 30 * time.Second}}

// quietTime is the time before an attack, in which the hot program runs beside the collector
// alone.
const quietTime = 10 * time.Second

// attacks are the arguments of the programs that run at once, after their kind and time.
var attacks = [][]string{
	{"names", "30", "1"},
	{"names", "10", "3000"},
	{"mappings", "200", "8192"},
	{"files", "300", "1"},
}

//go:embed testdata/strangers.c
var strangersSource []byte

// strangersConfig is that of config/node.yaml, but for what its pipelines do not have: all
// profiles of the host go to the witness, and strangers' profiles into files.
var strangersConfig = template.Must(template.New("strangers").Parse(strings.TrimLeft(`
extensions:
  hot_units:
  inline_attributes:
receivers:
  cpu_profiler:
  otlp: {protocols: {grpc: {endpoint: "127.0.0.1:{{.OTLP}}"}}}
processors:
  memory_limiter: {check_interval: 1s, limit_mib: 384, spike_limit_mib: 96}
  cpu_trigger:
exporters:
  otlp_grpc: {endpoint: "127.0.0.1:{{.Backend}}", tls: {insecure: true}, compression: none}
  otlp_grpc/gated:
    endpoint: 127.0.0.1:{{.Backend}}
    tls: {insecure: true}
    compression: gzip
    middlewares: [{id: inline_attributes}]
    sending_queue:
      enabled: true
      sizer: bytes
      queue_size: 64000000
      batch: {sizer: bytes, flush_timeout: 1s, min_size: 500000, max_size: 3000000}
  pprof: {directory: "{{.Dir}}/profiles"}
service:
  extensions: [hot_units, inline_attributes]
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
      processors: [memory_limiter, cpu_trigger]
      exporters: [otlp_grpc/gated]
    profiles/files:
      receivers: [otlp]
      processors: [memory_limiter]
      exporters: [pprof]
`, "\n")))

// attack holds the cost of the collector while strangers attacked, beside a hot program.
type attack struct {
	allowance
	most            int64 // resident
	quiet, attacked taken // by the collector
	profiles        int   // sent to its exporter pprof, and taken
	// The samples of the hot program that were taken in the attack, their time by the
	// period that they were taken with, and the time that the kernel has counted.
	named, unnamed, truncated int64
	sampled                   map[int64]time.Duration
	cut                       map[string]int // the last functions of truncated stacks
	used                      time.Duration
	limits                    map[string]int64
	memory                    map[string]int64
	firstUnnamedReasons       []string
}

// strangers has one attack for each allowance.
func (s *soak) strangers(ctx context.Context) error {
	for _, of := range allowances {
		progress("strangers attack for %v, GOMEMLIMIT=%s", of.lasts, of.heap)
		if err := s.group.LimitMemory(of.resident); err != nil {
			return err
		}
		a, err := s.strangersAttack(ctx, of)
		if err != nil {
			return fmt.Errorf("GOMEMLIMIT=%s: %w", of.heap, err)
		}
		s.attacks = append(s.attacks, a)
	}
	return nil
}

// strangersAttack has one attack, and the hot program in a cgroup of its own.
func (s *soak) strangersAttack(ctx context.Context, of allowance) (a *attack, err error) {
	a = &attack{allowance: of}
	program := filepath.Join(s.dir, "strangers")
	if err := os.WriteFile(program+".c", strangersSource, 0o600); err != nil {
		return nil, err
	}
	if out, err := exec.CommandContext(ctx, "cc", "-O1", "-fno-omit-frame-pointer", "-o", program, program+".c").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compile the strangers: %w\n%s", err, out)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	seen := &witness{attack: a}
	peer := otlppeer.New(seen.take)
	if err := peer.Start(); err != nil {
		return nil, err
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
		return nil, err
	}
	defer func() { err = errors.Join(err, hot.Remove()) }()
	if err := hot.RaiseWeight(8); err != nil {
		return nil, err
	}
	hostile, err := group("strangers", 1)
	if err != nil {
		return nil, err
	}
	var running sync.WaitGroup
	defer running.Wait()
	defer func() { err = errors.Join(err, hostile.Remove(), removePerfMaps()) }()

	begin := func(g *scratch.Cgroup, service, name string, args ...string) (*exec.Cmd, error) {
		cmd := g.Command(name, args...)
		// The stack of a signal handler ends before that of its goroutine, so Go sends none.
		cmd.Env = append(os.Environ(), "OTEL_SERVICE_NAME="+service, "GODEBUG=asyncpreemptoff=1")
		cmd.Stderr = os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		return cmd, cmd.Start()
	}
	load, err := begin(hot, hotService, self, "-role", "winding")
	if err != nil {
		return nil, err
	}
	defer func() {
		_ = load.Process.Kill()
		_ = load.Wait()
	}()
	free, err := freePorts(2)
	if err != nil {
		return nil, err
	}
	c, err := startCollector(ctx, strangersConfig, s.binary, "strangers", s.group, settings{Dir: s.dir, Backend: peer.Port, Metrics: free[0], OTLP: free[1], GoMemory: of.heap})
	if err != nil {
		return nil, err
	}
	defer c.kill()
	answer, err := s.stall()
	if err != nil {
		return nil, err
	}
	answer = sync.OnceValue(answer)
	defer func() { err = errors.Join(err, answer()) }() // before c.kill: nothing waits for the disk then

	if err := sleep(ctx, quietTime/2); err != nil { // it has read what was there
		return nil, err
	}
	if a.quiet, err = a.span(ctx, c, quietTime); err != nil {
		return nil, err
	}
	usedBefore, err := hot.CPUTime()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	for _, args := range attacks {
		cmd, err := begin(hostile, "strangers", program, slices.Concat(args[:1], []string{fmt.Sprint(of.lasts.Seconds())}, args[1:], []string{s.dir})...)
		if err != nil {
			return nil, err
		}
		running.Go(func() { _ = cmd.Wait() })
	}
	var sendErr error
	sending, stopSending := context.WithCancel(ctx)
	defer stopSending()
	var sender sync.WaitGroup
	sender.Go(func() { a.profiles, sendErr = sendNames(sending, c.OTLP, of.lasts*3/4) })
	a.attacked, err = a.span(ctx, c, of.lasts)
	ended := time.Now()
	used, usedErr := hot.CPUTime()
	stopSending()
	sender.Wait()
	if err := errors.Join(err, usedErr, sendErr); err != nil {
		return nil, err
	}
	figures, err := c.scrape(ctx)
	if err != nil {
		return nil, err
	}
	if err := answer(); err != nil {
		return nil, err
	}
	// A shutdown does not wait for a disk that it knows as stalled.
	for left := 100; strings.Contains(c.logText(), "disk does not answer, ") && !strings.Contains(c.logText(), "disk answers again") && left > 0; left-- {
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return nil, err
		}
	}
	if err := c.terminate(); err != nil { // it exports what is left
		return nil, err
	}
	seen.judge(began, ended)
	a.used = used - usedBefore
	a.limits = figures.by("otelcol_cpu_profiler_limits_hit", "limit")
	a.memory = figures.by("otelcol_cpu_profiler_memory", "what")
	return a, nil
}

// removePerfMaps removes the perf maps of strangers that were killed.
func removePerfMaps() error {
	paths, err := filepath.Glob("/tmp/perf-*.map")
	for _, path := range paths {
		var pid, of int
		_, _ = fmt.Sscanf(path, "/tmp/perf-%d.map", &pid)
		f, openErr := os.Open(path)
		if openErr != nil {
			continue // its owner has removed it
		}
		_, scanErr := fmt.Fscanf(f, "%x %x n%d_0_", new(uint64), new(uint64), &of)
		if scanErr == nil && of == pid && pid != 0 {
			err = errors.Join(err, os.Remove(path))
		}
		_ = f.Close()
	}
	return err
}

// taken is the CPU time of the collector in a span of time, as shares of a core. by has
// what cpu_profiler measures of it, by the kind of work.
type taken struct {
	total float64
	by    map[string]float64
}

// beyond is all of it but reading samples.
func (t *taken) beyond() float64 { return t.total - t.by["samples"] }

// span weighs the collector for a while.
func (a *attack) span(ctx context.Context, c *collector, d time.Duration) (taken, error) {
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
		a.most = max(a.most, resident)
	}
	after, err := c.spent(ctx)
	elapsed := time.Since(began).Seconds()
	out := taken{total: (after.total - before.total) / elapsed, by: make(map[string]float64)}
	for work := range after.by {
		out.by[work] = (after.by[work] - before.by[work]) / elapsed
	}
	return out, err
}

// spent returns the collector's CPU time until now, in seconds.
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
	out := taken{total: (user + system) / ticks, by: make(map[string]float64)}
	for _, s := range f {
		if s.name == "otelcol_cpu_profiler_cpu_time" {
			out.by[s.labels["work"]] += s.value
		}
	}
	return out, nil
}

// hotService is the service of the hot program.
const hotService = "soak-hot"

// witness keeps what it gets of the hot program.
type witness struct {
	mu     sync.Mutex
	attack *attack
	events []sighting
}

// sighting is one sample of the hot program.
type sighting struct {
	at, period int64
	missing    string // what of its stack has no name
	cut        string // the last function of a truncated stack
}

func (w *witness) take(_ context.Context, pd pprofile.Profiles) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := dictionary.NewReader(pd.Dictionary())
	for _, rp := range pd.ResourceProfiles().All() {
		service, ok := rp.Resource().Attributes().Get(attr.ServiceName)
		if !ok || service.Str() != hotService {
			continue
		}
		for _, sp := range rp.ScopeProfiles().All() {
			for _, p := range sp.Profiles().All() {
				for key := range d.Attributes(p.AttributeIndices()) {
					if key == attr.TriggerID { // it is here without that, too
						return nil
					}
				}
				for _, sample := range p.Samples().All() {
					e := sighting{period: p.Period(), missing: nameless(pd.Dictionary(), sample)}
					for key := range d.Attributes(sample.AttributeIndices()) {
						if key == attr.StackTruncated {
							e.cut = outermost(d, sample)
						}
					}
					for _, at := range sample.TimestampsUnixNano().All() {
						e.at = int64(at)
						w.events = append(w.events, e)
					}
				}
			}
		}
	}
	return nil
}

// judge counts what was sampled in a span of time.
func (w *witness) judge(began, ended time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.attack
	a.sampled, a.cut = make(map[int64]time.Duration), make(map[string]int)
	for _, e := range w.events {
		if e.at < began.UnixNano() || e.at >= ended.UnixNano() {
			continue
		}
		a.sampled[e.period] += time.Duration(e.period)
		if e.cut != "" {
			a.truncated++
			a.cut[e.cut]++
		}
		if e.missing == "" {
			a.named++
			continue
		}
		a.unnamed++
		if len(a.firstUnnamedReasons) < 5 {
			a.firstUnnamedReasons = append(a.firstUnnamedReasons, e.missing)
		}
	}
}

// whole returns the CPU time that the hot program's profile has, as a share of what the
// kernel has counted.
func (a *attack) whole() float64 {
	sampled := time.Duration(0)
	for _, d := range a.sampled {
		sampled += d
	}
	return float64(sampled) / float64(a.used)
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

// attackFaults lists the bounds that did not hold in any attack.
func (s *soak) attackFaults() (all []string) {
	for _, a := range s.attacks {
		all = append(all, a.faults()...)
	}
	return all
}

// outermost returns the function farthest from the leaf.
func outermost(d dictionary.Reader, s pprofile.Sample) string {
	stack := d.StackTable().At(int(s.StackIndex())).LocationIndices()
	if stack.Len() == 0 {
		return "nothing"
	}
	lines := d.LocationTable().At(int(stack.At(stack.Len() - 1))).Lines()
	if lines.Len() == 0 {
		return "a function without a name"
	}
	return d.Text(d.FunctionTable().At(int(lines.At(lines.Len() - 1).FunctionIndex())).NameStrindex())
}

// faults lists the bounds that did not hold.
func (a *attack) faults() (all []string) {
	fault := func(format string, args ...any) {
		all = append(all, fmt.Sprintf("strangers, GOMEMLIMIT=%s: ", a.heap)+fmt.Sprintf(format, args...))
	}
	if a.most > a.resident {
		fault("%d MiB were resident, more than %d", a.most>>20, a.resident>>20)
	}
	if beyond := a.attacked.beyond(); a.lasts >= time.Minute && beyond > attackedCPU {
		fault("beyond sampling the collector took %.1f %% of a core, more than %.0f %%", 100*beyond, 100*attackedCPU)
	}
	if float64(a.named) < attackedNamed*float64(a.named+a.unnamed) || a.named == 0 {
		fault("of the hot program's samples %d have all names and %d do not: %s", a.named, a.unnamed, strings.Join(a.firstUnnamedReasons, ", "))
	}
	if float64(a.truncated-a.unnamed) > attackedCut*float64(a.named+a.unnamed) {
		fault("of the hot program's %d stacks %d are truncated, more than %.0f %%: %v", a.named+a.unnamed, a.truncated, 100*attackedCut, a.cut)
	}
	off := attackedError + 2/math.Sqrt(float64(a.named+a.unnamed)) // more than two standard deviations
	if whole := a.whole(); !(math.Abs(whole-1) <= off) {           // not a number is a fault, too
		fault("the hot program's profile has %.1f %% of its CPU time, more than %.1f %% off", 100*whole, 100*off)
	}
	if a.profiles < profilesSent/30 { // a busy machine sends few
		fault("the collector took %d profiles of strangers of %d, so that this part of the attack was none", a.profiles, profilesSent)
	}
	return all
}

func (s *soak) printAttack(w io.Writer) {
	for _, a := range s.attacks {
		a.print(w)
	}
}

func (a *attack) print(w io.Writer) {
	fmt.Fprintf(w, "## %v of strangers beside a hot program, GOMEMLIMIT=%s\n\n", a.lasts, a.heap)
	head(w, "", "")
	row(w, "resident MiB, at most", a.most>>20)
	percent := func(what string, share float64) { row(w, what, fmt.Sprintf("%.1f", 100*share)) }
	percent("CPU without them, % of a core", a.quiet.total)
	percent("CPU under attack, % of a core", a.attacked.total)
	for _, work := range slices.Sorted(maps.Keys(a.attacked.by)) {
		percent("of that "+work, a.attacked.by[work])
	}
	percent("of that beyond samples", a.attacked.beyond())
	row(w, "samples of the hot program with all names", a.named)
	row(w, "samples of the hot program without", a.unnamed)
	row(w, "samples of the hot program with truncated stacks", a.truncated)
	for _, function := range slices.Sorted(maps.Keys(a.cut)) {
		row(w, "of these, the last function is "+function, a.cut[function])
	}
	row(w, "its CPU time by the kernel, s", fmt.Sprintf("%.2f", a.used.Seconds()))
	for _, period := range slices.Sorted(maps.Keys(a.sampled)) {
		row(w, fmt.Sprintf("in its profile, s, at %.1f Hz", 1e9/float64(period)), fmt.Sprintf("%.2f", a.sampled[period].Seconds()))
	}
	percent("that is, % of it", a.whole())
	row(w, "profiles of strangers taken", a.profiles)
	for _, what := range slices.Sorted(maps.Keys(a.memory)) {
		row(w, "remembered, KiB: "+what, a.memory[what]>>10)
	}
	for _, limit := range slices.Sorted(maps.Keys(a.limits)) {
		row(w, "at a limit: "+limit, a.limits[limit])
	}
	fmt.Fprintln(w)
}
