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

// The following bounds apply while strangers attack. attackedCPU is the maximum CPU time
// that the collector may use in addition to reading samples, as a share of a core.
// attackedError is the maximum relative difference between the CPU time in the hot
// program's profile and the kernel's count. The difference by chance, which depends on
// the number of samples, is allowed in addition to attackedError.
const (
	attackedCPU   = 0.20 // 9 to 16 % were measured on different machines; the rest allows for other load
	attackedError = 0.03
	// attackedNamed is the minimum share of the hot program's samples
	// in which all functions have names. If records about processes
	// are lost, names may be missing for seconds.
	attackedNamed = 0.8
	// attackedCut is the maximum share of the hot program's stacks that may be truncated.
	// Some stacks are always truncated, because Go's scheduler runs on its own stacks.
	attackedCut = 0.01
)

// allowance describes one attack. resident is the memory that the
// collector may use. heap is the collector's GOMEMLIMIT, which is
// four fifths of resident. lasts is the length of the attack.
type allowance struct {
	resident int64
	heap     string
	lasts    time.Duration
}

// allowances lists the attacks, which run one after the other. The first attack has the
// smallest memory limit under which a collector works. The second attack has the memory
// limit of the configurations in deploy.
//
// The second attack is short, because it only measures memory. The CPU time of a short
// attack is not checked. At the beginning of an attack, the collector may use the file
// budget that it has saved before, so reading files takes more CPU time.
var allowances = []allowance{{256 << 20, "205MiB", time.Minute}, {512 << 20, "410MiB", 30 * time.Second}}

// quietTime is the time before an attack in which
// only the hot program and the collector run.
const quietTime = 10 * time.Second

// attacks are the arguments of the programs that attack at the same
// time. The duration is inserted after the first argument.
var attacks = [][]string{
	{"names", "30", "1"},
	{"names", "10", "3000"},
	{"mappings", "200", "8192"},
	{"files", "300", "1"},
}

//go:embed testdata/strangers.c
var strangersSource []byte

// strangersConfig is the configuration of config/node.yaml with two more
// pipelines. One pipeline sends all profiles of the host to the witness. The
// other pipeline writes the profiles that strangers send into files.
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

// attack contains the results of one attack: the costs of the collector, and the profile
// of a hot program that ran at the same time.
type attack struct {
	allowance
	most            int64 // resident memory, in bytes
	quiet, attacked taken // CPU time of the collector
	profiles        int   // profiles that were sent to the pprof exporter and accepted
	// named, unnamed and truncated count the samples of the hot program during the attack.
	// sampled is the CPU time of these samples, computed from their period. used is the CPU
	// time that the kernel counted.
	named, unnamed, truncated int64
	sampled                   map[int64]time.Duration
	cut                       map[string]int // by the last function of the truncated stack
	used                      time.Duration
	limits                    map[string]int64
	memory                    map[string]int64
	firstUnnamedReasons       []string
}

// strangers runs the attacks in allowances, one after the other. A virtual machine that
// stands still for seconds counts CPU time in which no sample is taken. If only the CPU time
// in the hot program's profile is wrong, the attack is therefore repeated once.
func (s *soak) strangers(ctx context.Context) error {
	for _, of := range allowances {
		a, err := s.strangersAttack(ctx, of)
		if err == nil && a.wrongTime() != "" && len(a.faults()) == 1 {
			progress("the attack is repeated: %s", a.wrongTime())
			a, err = s.strangersAttack(ctx, of)
		}
		if err != nil {
			return fmt.Errorf("GOMEMLIMIT=%s: %w", of.heap, err)
		}
		s.attacks = append(s.attacks, a)
	}
	return nil
}

// strangersAttack runs one attack. The hot program runs in a separate cgroup.
func (s *soak) strangersAttack(ctx context.Context, of allowance) (a *attack, err error) {
	progress("strangers attack for %v, GOMEMLIMIT=%s", of.lasts, of.heap)
	if err := s.group.LimitMemory(of.resident); err != nil {
		return nil, err
	}
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
		// asyncpreemptoff keeps Go from sending signals, because a stack inside a signal
		// handler does not include the stack of the goroutine.
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
	defer func() { err = errors.Join(err, answer()) }() // runs before c.kill, so that nothing waits for the disk

	if err := sleep(ctx, quietTime/2); err != nil { // until the collector has read all running processes
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
	// Wait until the collector has noticed that the disk answers again, because a shutdown
	// does not wait for a disk that counts as stalled.
	for left := 100; strings.Contains(c.logText(), "disk does not answer, ") && !strings.Contains(c.logText(), "disk answers again") && left > 0; left-- {
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return nil, err
		}
	}
	if err := c.terminate(); err != nil { // the collector exports its remaining data
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
			continue // the owner has removed the file
		}
		_, scanErr := fmt.Fscanf(f, "%x %x n%d_0_", new(uint64), new(uint64), &of)
		if scanErr == nil && of == pid && pid != 0 {
			err = errors.Join(err, os.Remove(path))
		}
		_ = f.Close()
	}
	return err
}

// taken contains the CPU time of the collector in a period, as a share of a core. by
// contains the part of this time that cpu_profiler measures, by kind of work.
type taken struct {
	total float64
	by    map[string]float64
}

// beyond returns the CPU time without the time for reading samples.
func (t *taken) beyond() float64 { return t.total - t.by["samples"] }

// span measures the CPU time and the memory of the collector for a duration.
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
	const ticks = 100 // USER_HZ, on every architecture that Go supports
	out := taken{total: (user + system) / ticks, by: make(map[string]float64)}
	for _, s := range f {
		if s.name == "otelcol_cpu_profiler_cpu_time" {
			out.by[s.labels["work"]] += s.value
		}
	}
	return out, nil
}

// hotService is the service name of the hot program.
const hotService = "soak-hot"

// witness keeps the samples that it receives from the hot program.
type witness struct {
	mu     sync.Mutex
	attack *attack
	events []sighting
}

// sighting is one sample of the hot program.
type sighting struct {
	at, period int64
	missing    string // describes the first frame without a name
	cut        string // the last function, if the stack is truncated
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
					if key == attr.TriggerID { // the ungated pipeline sends the same samples
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

// judge counts the samples between two moments.
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

// whole returns the CPU time in the hot program's profile, as
// a share of the CPU time that the kernel counted.
func (a *attack) whole() float64 {
	sampled := time.Duration(0)
	for _, d := range a.sampled {
		sampled += d
	}
	return float64(sampled) / float64(a.used)
}

// wrongTime describes a wrong CPU time in the hot program's profile. It returns "" if the
// CPU time is right.
func (a *attack) wrongTime() string {
	off := attackedError + 2/math.Sqrt(float64(a.named+a.unnamed)) // more than two standard deviations
	if whole := a.whole(); !(math.Abs(whole-1) <= off) {           // NaN is wrong, too
		return fmt.Sprintf("the hot program's profile has %.1f %% of its CPU time, more than %.1f %% off", 100*whole, 100*off)
	}
	return ""
}

// nameless describes the first frame of the stack without a
// name. It returns "" if all frames have names.
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

// attackFaults returns the violated bounds of all attacks.
func (s *soak) attackFaults() (all []string) {
	for _, a := range s.attacks {
		all = append(all, a.faults()...)
	}
	return all
}

// outermost returns the function that is farthest from the leaf.
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

// faults returns the bounds that did not hold.
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
	if wrong := a.wrongTime(); wrong != "" {
		fault("%s", wrong)
	}
	if a.profiles < profilesSent/30 { // a busy machine sends few profiles
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
