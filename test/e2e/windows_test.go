// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	pprofile "github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"
)

// random is the source of a DLL that Wine 8 lacks. The DLL contains the function that Go
// programs use for random numbers.
const random = `#include <windows.h>
BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE p, SIZE_T n) { return SystemFunction036(p, n); }
`

// newWine creates a C: drive for this test.
func newWine(t *testing.T) {
	t.Helper()
	if os.Getenv("HOTPROFILE_COLLECTOR_WINDOWS") == "" {
		t.Skip("the distribution for Windows is tested by `make test-windows`")
	}
	for _, tool := range []string{"wine", "x86_64-w64-mingw32-gcc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("Windows is tested under Wine: %v: apt-get install wine wine64 gcc-mingw-w64-x86-64", err)
		}
	}
	prefix := filepath.Join(t.TempDir(), "wine")
	t.Setenv("WINEPREFIX", prefix)
	t.Cleanup(stopWine)
	if text, err := exec.Command("wine", "wineboot", "--init").CombinedOutput(); err != nil {
		t.Skipf("Wine does not start here: %v: %s", err, text)
	}
	source := filepath.Join(t.TempDir(), "random.c")
	require.NoError(t, os.WriteFile(source, []byte(random), 0o600))
	text, err := exec.Command("x86_64-w64-mingw32-gcc", "-shared", "-o", filepath.Join(prefix, "drive_c/windows/system32/bcryptprimitives.dll"), source, "-ladvapi32").CombinedOutput()
	require.NoError(t, err, "%s", text)
}

func stopWine() { _ = exec.Command("wineserver", "-k").Run() }

// forWindows builds a Go program for Windows and returns a command that runs it in Wine.
func forWindows(t *testing.T, source string, args ...string) *exec.Cmd {
	t.Helper()
	program := filepath.Join(t.TempDir(), filepath.Base(source)+".exe")
	build := exec.Command("go", "build", "-o", program, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=windows")
	text, err := build.CombinedOutput()
	require.NoError(t, err, "%s", text)
	return exec.Command("wine", append([]string{program}, args...)...)
}

func TestWindowsPackagesUnderWine(t *testing.T) {
	newWine(t)
	packages := strings.Fields(os.Getenv("HOTPROFILE_OF_WINDOWS"))
	require.NotEmpty(t, packages)
	cmd := exec.Command("go", append([]string{"test", "-count=1", "-exec=wine", "-v", "-run=Windows"}, packages...)...)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=windows")
	text, err := cmd.CombinedOutput()
	t.Logf("%s", text)
	require.NoError(t, err)
	require.Equal(t, len(packages), strings.Count(string(text), "\nok  "))
}

// TestWindowsDistributionUnderWine runs two hot programs. One program is a service with
// net/http/pprof, and the other program sends recorded .NET buffers. The gates of both
// programs must open, and the profile files of both programs must contain the reason.
func TestWindowsDistributionUnderWine(t *testing.T) {
	newWine(t)
	dir := t.TempDir()
	listen := freePort(t)
	overlay := filepath.Join(dir, "overlay.yaml")
	// Wine cannot name the process that accepted a
	// connection, so the endpoint has a target.
	require.NoError(t, os.WriteFile(overlay, fmt.Appendf(nil, `
receivers:
  cpu_profiler:
    pprof_endpoints:
      - {endpoint: "http://localhost:%d/debug/pprof", interval: 3s, duration: 2s, target: {executable: '**\pprofservice.exe'}}
processors:
  cpu_trigger:
    min_age: 0s
    policies:
      - {name: cpu, any_of: [{monitor: cpu_utilization, threshold: 1, average_over: 5s}], duration: 20s}
exporters:
  pprof: {idle_timeout: 2s}
service:
  telemetry:
    logs: {encoding: json}
`, listen), 0o600))
	startLoad(t, forWindows(t, "./testdata/pprofservice", "-listen", fmt.Sprintf("127.0.0.1:%d", listen)), hotService)
	cmd := exec.Command("wine", os.Getenv("HOTPROFILE_COLLECTOR_WINDOWS"), "--config", "../../config/windows.yaml", "--config", overlay)
	cmd.Env = append(os.Environ(), `HOTPROFILE_DIRECTORY=C:\profiles`, `HOTPROFILE_CONSOLE=C:/console`)
	c := watch(t, "windows", cmd)
	t.Cleanup(stopWine) // services of Wine keep the log open
	c.wait(startTimeout, ".NET profile server listening", nil)
	sender := forWindows(t, "../dotnetsender", "-rate", "0", "-for", "60s", "../../testdata/dotnet/web")
	require.NoError(t, sender.Start())
	defer func() { _ = sender.Process.Kill(); _ = sender.Wait() }()
	for _, service := range []string{"pprofservice.exe", "dotnetsender"} {
		of := func(l logLine) bool { return strings.HasSuffix(l.str("service"), service) }
		opened := c.wait(startTimeout, "gate opened", of)
		require.Equal(t, "cpu_utilization", opened.str("monitor"))
		c.wait(startTimeout, "gate closed", func(l logLine) bool { return of(l) && l["samples"].(float64) > 0 })
		written := c.wait(startTimeout, "profile written", of)
		path := strings.ReplaceAll(strings.TrimPrefix(written.str("file"), `C:\`), `\`, "/")
		f, err := os.Open(filepath.Join(os.Getenv("WINEPREFIX"), "drive_c", path))
		require.NoError(t, err)
		defer f.Close()
		p, err := pprofile.Parse(f)
		require.NoError(t, err)
		require.NotEmpty(t, p.Sample)
		require.Contains(t, strings.Join(p.Comments, "\n"), opened.str("trigger_id"))
	}
}
