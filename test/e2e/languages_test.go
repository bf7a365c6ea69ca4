// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// interpreted is a program with three functions that use 60, 30 and 10 percent of its CPU
// time. These functions call functions of the C library or of a C module.
type interpreted struct {
	command []string
	// sixty, thirty and ten are the names of the functions. main is the name of the
	// function that calls them.
	sixty, thirty, ten, main string
	// If roughly is set, only the order of the functions is compared.
	roughly bool
}

func TestPythonHasItsFunctionsByDefault(t *testing.T) {
	t.Parallel()
	hasItsFunctions(t, interpreted{
		command: []string{hosttest.Tool(t, "/usr/bin/python3"), "testdata/languages/shares.py"},
		sixty:   "Work.sixty", thirty: "Work.thirty", ten: "Work.ten", main: "main",
	})
}

func TestJavaHasItsFunctionsByDefault(t *testing.T) {
	t.Parallel()
	hasItsFunctions(t, interpreted{
		command: []string{hosttest.Tool(t, "java"), "testdata/languages/Shares.java"},
		sixty:   "Shares.sixty()", thirty: "Shares.thirty()", ten: "Shares.ten()", main: "Shares.main(java.lang.String[])",
	})
}

func TestNodeHasItsFunctionsByDefault(t *testing.T) {
	t.Parallel()
	hasItsFunctions(t, interpreted{
		command: []string{hosttest.Tool(t, "node"), "testdata/languages/shares.js"},
		sixty:   "sixty", thirty: "thirty", ten: "ten", main: "main",
	})
}

func TestPHPHasItsFunctionsByDefault(t *testing.T) {
	t.Parallel()
	php, err := exec.LookPath("php")
	if err != nil {
		t.Skip(err) // in CI, PHP is installed only if a package exists
	}
	hasItsFunctions(t, interpreted{
		command: []string{php, "testdata/languages/shares.php"},
		sixty:   "Work::sixty", thirty: "Work::thirty", ten: "Work::ten", main: "main", roughly: true,
	})
}

// TestWaitsOfPythonHaveTheirFunctions runs threads that wait in two functions. The
// off-CPU profile must contain both functions and their caller.
func TestWaitsOfPythonHaveTheirFunctions(t *testing.T) {
	t.Parallel()
	if err := perfevent.Probe().Kernel; err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
	profiles := whileHot(t, "{off_cpu: {}}", hosttest.Tool(t, "/usr/bin/python3"), "testdata/languages/waits.py")
	var all, named int64
	times := map[string]int64{}
	for _, profile := range profiles {
		if profile.sampleType != "off_cpu" {
			continue
		}
		for _, s := range profile.samples {
			for _, f := range []string{"forty", "twenty"} {
				if slices.Contains(s.functions, f) && slices.Contains(s.functions, "waiter") {
					times[f] += s.value
					named += s.value
				}
			}
			all += s.value
		}
	}
	t.Logf("%d ms off the CPU, %d ms with functions: %v", all/1e6, named/1e6, times)
	require.GreaterOrEqual(t, named*100, all*70)
	require.InDelta(t, 2, float64(times["forty"])/float64(times["twenty"]), 0.3)
}

// TestSamplesOfPythonLinkToTheSpanOfTheirThread runs a thread that publishes its active span
// in the format of OTEP 4947. The thread uses a library with a TLS descriptor.
func TestSamplesOfPythonLinkToTheSpanOfTheirThread(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" {
		t.Skip("thread contexts are read on amd64")
	}
	library := filepath.Join(t.TempDir(), "spans.so")
	built, err := exec.Command(hosttest.Tool(t, "gcc"), "-O2", "-shared", "-fPIC", "-mtls-dialect=gnu2",
		"-o", library, "testdata/languages/spans.c").CombinedOutput()
	require.NoError(t, err, "%s", built)
	python := hosttest.Tool(t, "/usr/bin/python3")
	one, two := strings.Repeat("01", 16), strings.Repeat("02", 16)
	links := map[string]map[string]int{"first": {}, "second": {}, "third": {}}
	for _, profile := range whileHot(t, "{}", python, "testdata/languages/spans.py", library) {
		for _, s := range profile.samples {
			route, _ := s.attributes["http.route"].(string)
			require.Equal(t, map[string]string{"": "", one: "/route/1", two: "/route/2"}[s.trace], route)
			for function, of := range links {
				if slices.Contains(s.functions, function) {
					of[s.trace] += s.events
				}
			}
		}
	}
	t.Logf("traces of the samples of each function: %v", links)
	for function, trace := range map[string]string{"first": one, "second": two} {
		right, without := links[function][trace], links[function][""]
		// In rare cases, a thread changes its span after a sample and before the span is read.
		require.LessOrEqual(t, 50*links[function][map[string]string{one: two, two: one}[trace]], right, function)
		require.Greater(t, right, without, function)
	}
	require.Greater(t, links["third"][""], 10*(links["third"][one]+links["third"][two]))
}

// hasItsFunctions runs a program with the defaults of cpu_profiler until the program's
// gate has closed. It compares the shares of the program's functions.
func hasItsFunctions(t *testing.T, p interpreted) {
	var all, whole, main int
	shares := map[string]int{}
	for _, profile := range whileHot(t, "{}", p.command...) {
		if profile.sampleType != "samples" {
			continue
		}
		for _, s := range profile.samples {
			all += s.events
			if !s.truncated {
				whole += s.events
			}
			if slices.Contains(s.functions, p.main) {
				main += s.events
			}
			for _, f := range []string{p.sixty, p.thirty, p.ten} {
				if slices.Contains(s.functions, f) {
					shares[f] += s.events
				}
			}
		}
	}
	t.Logf("%d samples, %d whole, %d with %s: %v", all, whole, main, p.main, shares)
	if p.roughly {
		require.Greater(t, main, 100)
		require.GreaterOrEqual(t, whole*100, all*80)
		require.Greater(t, shares[p.sixty], shares[p.thirty])
		require.Greater(t, shares[p.thirty], shares[p.ten])
		require.Positive(t, shares[p.ten])
		return
	}
	require.Greater(t, all, 300)
	require.GreaterOrEqual(t, whole*100, all*95)
	// On a busy machine some samples are read too late.
	require.GreaterOrEqual(t, main*100, all*60)
	total := shares[p.sixty] + shares[p.thirty] + shares[p.ten]
	for f, want := range map[string]float64{p.sixty: 0.6, p.thirty: 0.3, p.ten: 0.1} {
		bound := 0.08 + 4*math.Sqrt(want*(1-want)/float64(total))
		require.InDelta(t, want, float64(shares[f])/float64(total), bound, f)
	}
}

// whileHot runs a program until its gate has closed. It returns the program's profiles.
func whileHot(t *testing.T, receiver string, command ...string) (of []profile) {
	peer := startPeer(t)
	c := pipeline{
		extensions: []string{"hot_units:"},
		receiver:   receiver,
		trigger: fmt.Sprintf(`
    pre_trigger: 0
    policies:
      - name: cpu
        match: {cgroup: %q}
        any_of: [{monitor: cpu_usage, threshold: 0.1, average_over: 8s}]
        duration: 20s
        cooldown: 1h`, ofThisTest(t)),
		exporters: []string{peer.exporter()},
	}.start(t, freePort(t))
	g := newCgroup(t, "interpreted")
	g.SetQuota(t, 2*cores)
	startLoad(t, g.Command(command[0], command[1:]...), "e2e-interpreted")
	c.wait(startTimeout, "gate closed", nil)
	c.stop()
	peer.stop()
	for _, profile := range flatten(readProfiles(t, peer.grpcFile)) {
		if profile.service() == "e2e-interpreted" {
			of = append(of, profile)
		}
	}
	return of
}
