// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package profilefiles

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/test/hosttest"
	"github.com/hotprofile/hotprofile/test/pprofstest"
)

// incompressible returns a request that becomes a file of more than n bytes.
func incompressible(t *testing.T, attributes map[string]string, n int) pprofile.Profiles {
	in := pprofile.NewProfiles()
	pprofstest.Input{Profile: attributes, Stacks: n/4096 + 1}.Build(t).CopyTo(in)
	r := rand.New(rand.NewPCG(1, uint64(n)))
	strings := in.Dictionary().StringTable()
	for i := range strings.Len() {
		if len(strings.At(i)) > 6 && strings.At(i)[:6] == "main.f" {
			b := make([]byte, 5<<10)
			for k := range b {
				b[k] = byte(' ' + r.IntN(95))
			}
			strings.SetAt(i, string(b))
		}
	}
	return in
}

func TestFullDiskLosesTheOldestProfilesAndNotTheNewest(t *testing.T) {
	dir := hosttest.OnDisk(t)
	if dir == "" {
		return
	}
	f := openFiles(t, filepath.Join(dir, "profiles"), nil)
	const openings = 20
	for i := range openings {
		at := time.Unix(0, pprofstest.WindowStart).Add(time.Duration(i) * time.Minute)
		attributes := phased(fmt.Sprint("t", i), "both")
		attributes["hotprofile.trigger.time"] = at.UTC().Format(time.RFC3339)
		for _, s := range samplesOf(incompressible(t, attributes, 100<<10)) {
			f.Add(s.opening, s.Samples)
		}
		f.later(f.limits.flush)
		require.Zero(t, f.truncated(fmt.Sprint("t", i)))
	}
	require.Empty(t, f.Infos("t0"))
	left := 0
	for i := range openings {
		id := fmt.Sprint("t", i)
		infos := f.Infos(id)
		if left > 0 {
			require.NotEmpty(t, infos, "%s is newer than one that is left", id)
		}
		if len(infos) > 0 {
			left++
			f.profile(id, infos[0].ProfileKey)
		}
	}
	require.Greater(t, left, 3)
	require.EqualValues(t, map[string]int64{DroppedProfiles: openings - int64(left)}, f.dropped)
	f = openFiles(t, f.options.Directory, nil)
	require.Len(t, f.openings, left)
	require.Empty(t, f.dropped)
}

func TestDiskThatIsFullOfOthersLosesSamplesAndSaysSo(t *testing.T) {
	dir := hosttest.OnDisk(t)
	if dir == "" {
		return
	}
	f := openFiles(t, filepath.Join(dir, "profiles"), nil)
	f.send(pprofstest.Input{Profile: phased("t1", "both"), Hot: 3})
	f.later(f.limits.flush)
	other, err := os.Create(filepath.Join(dir, "other"))
	require.NoError(t, err)
	for err == nil {
		_, err = other.Write(make([]byte, 4096))
	}
	require.NoError(t, other.Close())
	f.send(pprofstest.Input{Profile: phased("t1", "both"), Stacks: 1000})
	f.later(f.limits.flush)
	require.EqualValues(t, 1000, f.dropped[DroppedDisk])
	key := cpuKey(f, "t1")
	require.EqualValues(t, 1000, f.truncated("t1"))
	require.Equal(t, map[string]int64{"main.hot both": 3}, byPhase(f.profile("t1", key)))
	require.NoError(t, os.Remove(other.Name()))
	f.send(pprofstest.Input{Profile: phased("t1", "both"), Hot: 1})
	f.later(f.limits.flush)
	f = openFiles(t, f.options.Directory, nil)
	require.Equal(t, map[string]int64{"main.hot both": 4}, byPhase(f.profile("t1", key)))
	require.EqualValues(t, 1000, f.truncated("t1"))
}

// TestKilledWhileItWrites kills a process several times while it adds samples. The files
// must stay readable, and must contain all samples that the process reported as written.
func TestKilledWhileItWrites(t *testing.T) {
	const variable = "HOTPROFILE_TEST_KILLED"
	if dir := os.Getenv(variable); dir != "" {
		f := openFiles(t, dir, func(l *limits) { l.segments = 3 })
		before := int64(0)
		for _, i := range f.Infos("t1") {
			before += i.Samples
		}
		for i := int64(0); ; i++ {
			f.send(pprofstest.Input{Profile: phased("t1", "both"), Hot: 1, Stacks: 50})
			f.send(pprofstest.Input{Profile: phased(fmt.Sprint("x", i%5), "both"), Hot: 1})
			f.later(f.limits.flush)
			fmt.Println(before + 51*(i+1))
		}
	}
	dir := t.TempDir()
	total := int64(0)
	for round := range 12 {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), variable+"="+dir)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := bufio.NewScanner(out)
		said := int64(0)
		for n := 0; n < 3+round && lines.Scan(); n++ {
			_, err := fmt.Sscan(lines.Text(), &said)
			require.NoError(t, err, lines.Text())
		}
		time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond) // a random moment
		require.NoError(t, cmd.Process.Kill())
		for lines.Scan() {
			_, _ = fmt.Sscan(lines.Text(), &said)
		}
		_ = cmd.Wait()
		f := openFiles(t, dir, nil)
		info := f.Infos("t1")[0]
		require.GreaterOrEqual(t, info.Samples, said)
		require.Greater(t, said, total)
		total = info.Samples
		sum := int64(0)
		for _, s := range f.profile("t1", info.ProfileKey).Sample {
			sum += s.Value[0]
		}
		require.Equal(t, info.Samples, sum)
		require.Empty(t, f.dropped)
		segments, others := f.paths()
		require.Len(t, others, len(f.openings))
		listed := 0
		for _, o := range f.openings {
			for _, p := range o.Profiles {
				listed += len(p.Segments)
			}
		}
		require.Len(t, segments, listed)
	}
}
