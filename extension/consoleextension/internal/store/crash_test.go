// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package store

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"go.uber.org/zap/zaptest/observer"
)

// TestMain runs the tests. If STORE_TEST_WRITE is set, the test binary writes
// to a store until it is killed.
func TestMain(m *testing.M) {
	if dir := os.Getenv("STORE_TEST_WRITE"); dir != "" {
		writeUntilKilled(dir)
	}
	os.Exit(m.Run())
}

// writeUntilKilled writes readings and openings. It prints the ID of each
// opening that is committed.
func writeUntilKilled(dir string) {
	begin := time.Now()
	var passed atomic.Int64
	uptime := func() time.Duration { return time.Duration(passed.Load()) }
	s, err := Open(Options{Directory: dir, Now: func() time.Time { return begin.Add(uptime()) }, Uptime: uptime})
	if err != nil {
		fmt.Println("open:", err)
		os.Exit(1)
	}
	start := begin.UnixNano()
	for i := 0; ; i++ {
		passed.Add(int64(time.Minute)) // so that many records are thinned and deleted
		wall := begin.Add(uptime())
		for n := range 50 {
			u := unitNamed(fmt.Sprint("unit ", n))
			s.PutReadings(u, []Reading{reading("cpu", "cpu_usage", wall, float64(i), 80)}, nil)
		}
		id := fmt.Sprintf("%x-%d", start, i)
		s.PutOpening(Opening{ID: id, Unit: unitNamed(fmt.Sprint("unit ", i%50)), Policy: "cpu", Kind: "hot", Triggered: wall})
		if err := s.Commit(context.Background()); err != nil {
			os.Exit(1)
		}
		fmt.Println(id)
		s.flush()
	}
}

// TestNoCommittedOpeningIsLostByKill kills a writing process at random moments, and checks
// that its store still contains all committed openings.
func TestNoCommittedOpeningIsLostByKill(t *testing.T) {
	dir := t.TempDir()
	var ids []string
	for round := range 20 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "STORE_TEST_WRITE="+dir)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		cmd.Stderr = os.Stderr
		require.NoError(t, cmd.Start())
		lines := bufio.NewScanner(out)
		after := 1 + rand.IntN(40)
		for range after {
			require.True(t, lines.Scan(), "the process ended by itself: %v", lines.Err())
			require.False(t, strings.HasPrefix(lines.Text(), "open:"), lines.Text())
			ids = append(ids, lines.Text())
		}
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond) // a random moment
		require.NoError(t, cmd.Process.Kill())
		for lines.Scan() {
			ids = append(ids, lines.Text())
		}
		_ = cmd.Wait()

		log, logs := observer.New(zap.ErrorLevel)
		s, err := Open(Options{Directory: dir, Logger: zap.New(log)})
		require.NoError(t, err, "round %d", round)
		require.Empty(t, logs.All(), "round %d", round)
		require.Empty(t, s.db.aside())
		for _, id := range ids {
			_, err := s.Opening(t.Context(), id)
			require.NoError(t, err, "round %d: opening %s", round, id)
		}
		require.Zero(t, s.Usage().Dropped["damaged"])
		trends, err := s.Trends(t.Context(), IDOf("node-1", "unit 7"), time.Time{}, time.Time{}, 0)
		require.NoError(t, err)
		if len(ids) > 2*20 {
			require.NotEmpty(t, trends)
		}
		require.NoError(t, s.Close())
	}
	t.Logf("%d openings were committed and found", len(ids))
}

// populated creates a store with all kinds of records. It
// returns the path of the database.
func populated(t *testing.T) string {
	dir := t.TempDir()
	w := newWorld(t, Options{Directory: dir, noSync: true})
	for i := range 5 * 60 {
		w.pass(time.Minute)
		for n := range 20 {
			u := unitNamed(fmt.Sprint("unit ", n))
			w.PutReadings(u, []Reading{reading("cpu", "cpu_usage", w.wall, float64(i*n%90), 80)}, map[string]string{"cpu": "watching"})
		}
		if i%10 == 0 {
			u := unitNamed(fmt.Sprint("unit ", i%20))
			w.PutOpening(Opening{ID: fmt.Sprint("opening-", i), Unit: u, Policy: "cpu", Triggered: w.wall})
			w.PutRefusal(Refusal{At: w.wall, Unit: u, Policy: "cpu", Why: "cooldown"})
			w.flush()
		}
	}
	self := Instance{ID: "i-1"}
	w.PutMetrics(self, []Metric{{Name: "otelcol_x", At: w.wall, Value: 1}})
	w.PutLogs(self, []Log{{At: w.wall, Severity: "WARN", Body: "something"}}, true)
	require.NoError(t, w.Close())
	return filepath.Join(dir, "console.db")
}

// TestBulkADamagedFileIsSetAsideOrReadWithoutWhatIsDamaged damages the database in many
// ways. In every case, the store must open, answer all queries and accept new records.
func TestBulkADamagedFileIsSetAsideOrReadWithoutWhatIsDamaged(t *testing.T) {
	path := populated(t)
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	const page = 4096
	r := rand.New(rand.NewPCG(1, 2))
	pages := len(whole) / page
	type damage struct {
		name string
		do   func([]byte) []byte
	}
	damages := []damage{
		{"empty", func(b []byte) []byte { return b[:0] }},
		{"one byte", func(b []byte) []byte { return b[:1] }},
		{"no header", func(b []byte) []byte { clear(b[:100]); return b }},
		{"text", func([]byte) []byte { return []byte(strings.Repeat("no database\n", 10_000)) }},
		{"first page", func(b []byte) []byte { clear(b[:page]); return b }},
		{"second page", func(b []byte) []byte { clear(b[page : 2*page]); return b }},
		{"another version", func(b []byte) []byte { b[63] = 9; return b }},
	}
	for i := range 20 {
		at := r.IntN(len(whole))
		damages = append(damages, damage{fmt.Sprint("cut ", i), func(b []byte) []byte { return b[:at] }})
	}
	for i := 2; i < pages; i += 4 {
		damages = append(damages, damage{fmt.Sprint("zero page ", i), func(b []byte) []byte { clear(b[i*page : (i+1)*page]); return b }})
	}
	for i := 2; i < pages; i += 4 {
		damages = append(damages,
			damage{fmt.Sprint("no elements in page ", i), func(b []byte) []byte { clear(b[i*page+3 : i*page+5]); return b }},
			damage{fmt.Sprint("another kind of page ", i), func(b []byte) []byte { b[i*page] ^= 8; return b }})
	}
	for i := range 60 {
		at, bit := r.IntN(len(whole)), r.IntN(8)
		if i%2 == 0 { // in the header of a page
			at = at/page*page + r.IntN(64)
		}
		damages = append(damages, damage{fmt.Sprint("bit ", i), func(b []byte) []byte { b[at] ^= 1 << bit; return b }})
	}
	for i := range 10 { // a page in the place of another page, as after a lost write
		from, to := r.IntN(pages), r.IntN(pages)
		damages = append(damages, damage{fmt.Sprint("page moved ", i), func(b []byte) []byte {
			copy(b[to*page:(to+1)*page], whole[from*page:(from+1)*page])
			return b
		}})
	}
	outcomes := map[string]int{}
	for _, d := range damages {
		dir := t.TempDir()
		file := filepath.Join(dir, "console.db")
		require.NoError(t, os.WriteFile(file, d.do(append([]byte(nil), whole...)), 0o600))
		log, logs := observer.New(zap.ErrorLevel)
		s, err := Open(Options{Directory: dir, Logger: zap.New(log), noSync: true})
		require.NoError(t, err, d.name)
		useAll(t, s, d.name)
		aside := s.db.aside()
		require.Len(t, aside, logs.FilterMessage("console's database damaged, set aside; starting anew").Len(), d.name)
		switch {
		case len(aside) > 0:
			outcomes["set aside"]++
		case s.Usage().Dropped["damaged"] > 0:
			outcomes["records dropped"]++
		default:
			outcomes["nothing lost, or the page was free"]++
		}
		require.NoError(t, s.Close(), d.name)
		s, err = Open(Options{Directory: dir, noSync: true})
		require.NoError(t, err, d.name)
		_, err = s.Opening(t.Context(), "new")
		require.NoError(t, err, d.name)
		require.NoError(t, s.Close(), d.name)
	}
	t.Log(len(damages), "damaged files:", outcomes)
	require.Positive(t, outcomes["set aside"])
	require.Positive(t, outcomes["records dropped"])
}

// useAll reads and writes all kinds of records.
func useAll(t *testing.T, s *Store, name string) {
	units := s.Units()
	for _, u := range units {
		if _, err := s.Trends(t.Context(), u.ID, time.Time{}, time.Time{}, 100); err != nil {
			require.ErrorIs(t, err, errDamaged, name)
			require.NoError(t, s.write(true), name) // the damaged database is set aside
		}
	}
	_, err := s.Openings(t.Context(), OpeningQuery{})
	require.NoError(t, err, name)
	s.Policies()
	_, err = s.Refusals(t.Context(), "", 0)
	_, err2 := s.PolicyChanges(t.Context())
	_, err3 := s.Instances(t.Context())
	if err := errors.Join(err, err2, err3); err != nil {
		require.ErrorIs(t, err, errDamaged, name)
		require.NoError(t, s.write(true), name)
	}
	for n := range 20 {
		s.PutReadings(unitNamed(fmt.Sprint("unit ", n)), []Reading{reading("cpu", "cpu_usage", time.Now(), 1, 80)}, nil)
	}
	require.True(t, s.PutOpening(Opening{ID: "new", Unit: unitNamed("new")}))
	require.NoError(t, s.Commit(t.Context()), name)
	require.NoError(t, s.write(true), name)
	s.maintain()
	require.NoError(t, s.write(true), name) // a database that maintenance found damaged is set aside
}

// TestADatabaseThatIsDamagedWhileItIsOpenIsSetAside truncates or overwrites the file of
// an open store. The data in memory must survive.
func TestADatabaseThatIsDamagedWhileItIsOpenIsSetAside(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, path string){
		"cut": func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, 8192)) },
		"overwritten": func(t *testing.T, path string) {
			st, err := os.Stat(path)
			require.NoError(t, err)
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			require.NoError(t, err)
			_, err = f.WriteAt(make([]byte, st.Size()), 0)
			require.NoError(t, err)
			require.NoError(t, f.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := populated(t)
			log, logs := observer.New(zap.WarnLevel)
			s, err := Open(Options{Directory: filepath.Dir(path), Logger: zap.New(log)})
			require.NoError(t, err)
			before, err := s.Openings(t.Context(), OpeningQuery{})
			require.NoError(t, err)
			require.NotEmpty(t, before)
			damage(t, path)
			_, err = s.Trends(t.Context(), IDOf("node-1", "unit 7"), time.Time{}, time.Time{}, 100)
			require.Error(t, err)
			s.PutOpening(Opening{ID: "new", Unit: unitNamed("new")})
			require.NoError(t, s.Commit(t.Context()))
			require.Positive(t, logs.FilterMessage("console's database damaged, set aside; starting anew").Len())
			_, err = s.Trends(t.Context(), IDOf("node-1", "unit 7"), time.Time{}, time.Time{}, 100)
			require.NoError(t, err)
			require.NoError(t, s.Close())

			s, err = Open(Options{Directory: filepath.Dir(path), Logger: zaptest.NewLogger(t)})
			require.NoError(t, err)
			after, err := s.Openings(t.Context(), OpeningQuery{})
			require.NoError(t, err)
			require.Len(t, after, len(before)+1)
			require.NoError(t, s.Close())
		})
	}
}

// TestOneCollectorUsesADirectory checks that a directory cannot be opened while another
// process uses the directory.
func TestOneCollectorUsesADirectory(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "STORE_TEST_WRITE="+dir)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()
	}()
	require.True(t, bufio.NewScanner(out).Scan())
	_, err = Open(Options{Directory: dir})
	require.ErrorContains(t, err, "the console's directory "+dir+" is used by another collector")
}
