// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/extension/storage/filestorage"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/extension/xextension/storage"
	"go.opentelemetry.io/collector/processor/processortest"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/internal/trigger/budget"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/metadata"
)

var (
	storageID = component.MustNewIDWithName("file_storage", "cooldowns")
	ownerID   = component.MustNewID(metadata.Type.String())
)

// fileStorage returns contrib's file storage in a directory.
func fileStorage(t testing.TB, dir string) storage.Extension {
	t.Helper()
	factory := filestorage.NewFactory()
	cfg := factory.CreateDefaultConfig().(*filestorage.Config)
	cfg.Directory = dir
	ext, err := factory.Create(context.Background(), extensiontest.NewNopSettings(factory.Type()), cfg)
	require.NoError(t, err)
	require.NoError(t, ext.Start(context.Background(), componenttest.NewNopHost()))
	t.Cleanup(func() { require.NoError(t, ext.Shutdown(context.Background())) })
	return ext.(storage.Extension)
}

// numbered returns a snapshot that differs from other snapshots by a number.
func numbered(n int) trigger.Snapshot {
	at := time.Date(2026, 5, 28, 20, 0, 0, n, time.UTC)
	return trigger.Snapshot{
		Taken:           at,
		Units:           []trigger.Cooldown{{Name: "/system.slice/checkout.service", Policy: "cpu", Until: at.Add(4 * time.Hour)}},
		Services:        []trigger.Cooldown{{Name: "checkout", Policy: "cpu", Until: at.Add(4 * time.Hour)}},
		Triggers:        []budget.Spending{{Time: at, Amount: 1}},
		ServiceTriggers: []trigger.ServiceSpending{{Name: "checkout", Spent: []budget.Spending{{Time: at, Amount: 1}}}},
		Bytes:           []budget.Spending{{Time: at, Amount: int64(n)}},
	}
}

func number(s trigger.Snapshot) int {
	if len(s.Bytes) != 1 {
		return -1
	}
	return int(s.Bytes[0].Amount)
}

func TestWhatWasSavedAtShutdownIsThereAfterARestart(t *testing.T) {
	dir := t.TempDir()
	for run := range 3 {
		client, err := openStorage(t.Context(), fileStorage(t, dir), ownerID)
		require.NoError(t, err)
		m := newMemory(client, zap.NewNop())
		got, ok := m.load(t.Context())
		require.Equal(t, run > 0, ok)
		if ok {
			require.Equal(t, numbered(run), got)
		}
		require.NoError(t, m.close(t.Context(), numbered(run+1)))
	}
}

func TestAStorageThatIsNotThereIsSaid(t *testing.T) {
	other := component.MustNewID("health_check")
	store := fileStorage(t, t.TempDir())
	host := hostWith{storageID: store, other: notAStorage{}}
	for _, tc := range []struct {
		id   component.ID
		says string
	}{
		{component.MustNewID("redis_storage"), `storage: no extension "redis_storage": configure it under extensions, and list it under service::extensions`},
		{other, `storage: the extension "health_check" stores nothing: name a storage extension, such as file_storage`},
	} {
		_, err := findStorage(host, tc.id)
		require.EqualError(t, err, tc.says)
	}
	first, err := openStorage(t.Context(), store, ownerID)
	require.NoError(t, err)
	_, err = openStorage(t.Context(), store, ownerID)
	require.ErrorContains(t, err, "has it open (give each processor a name of its own, such as cpu_trigger/2)")
	require.NoError(t, first.Close(t.Context()))
}

// TestADamagedStorageDoesNotStopTheStart checks that the processor starts if its stored
// cooldowns cannot be read, because cooldowns are optional.
func TestADamagedStorageDoesNotStopTheStart(t *testing.T) {
	for name, damage := range map[string]func(file string) error{
		"truncated":   func(file string) error { return os.Truncate(file, 5000) },
		"overwritten": func(file string) error { return os.WriteFile(file, bytes.Repeat([]byte("no database "), 3000), 0o600) },
		"a directory": func(file string) error { return errors.Join(os.Remove(file), os.Mkdir(file, 0o700)) },
		"open elsewhere": func(file string) error {
			other, err := openStorage(t.Context(), fileStorage(t, filepath.Dir(file)), ownerID)
			t.Cleanup(func() { _ = other.Close(context.Background()) })
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			store := fileStorage(t, dir)
			client, err := openStorage(t.Context(), store, ownerID)
			require.NoError(t, err)
			require.NoError(t, client.Close(t.Context()))
			files, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Len(t, files, 1)
			require.NoError(t, damage(filepath.Join(dir, files[0].Name())))

			core, logs := observer.New(zapcore.InfoLevel)
			set := processortest.NewNopSettings(metadata.Type)
			set.ID, set.Logger = ownerID, zap.New(core)
			cfg := createDefaultConfig()
			cfg.Storage = &storageID
			p, err := newProcessor(set, cfg, new(consumertest.ProfilesSink))
			require.NoError(t, err)
			require.NoError(t, p.Start(t.Context(), hostWith{storageID: store}))
			entries := logs.FilterMessage("cooldowns and budgets are not kept").All()
			require.Len(t, entries, 1)
			said := entries[0].ContextMap()["error"]
			if name == "open elsewhere" {
				require.Contains(t, said, "has it open")
			} else {
				require.Contains(t, said, "if its file is damaged, delete it")
				require.NotContains(t, said, "cpu_trigger/2")
			}
			require.NoError(t, p.Shutdown(t.Context()))
		})
	}
}

// TestAStorageThatIsTruncatedWhileItIsOpenEndsNothing truncates the file of a storage
// while the file is mapped into memory. The process must not crash.
func TestAStorageThatIsTruncatedWhileItIsOpenEndsNothing(t *testing.T) {
	dir := t.TempDir()
	client, err := openStorage(t.Context(), fileStorage(t, dir), ownerID)
	require.NoError(t, err)
	m := newMemory(client, zap.NewNop())
	require.NoError(t, m.write(t.Context(), numbered(1)))
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(filepath.Join(dir, files[0].Name()), 0))
	require.ErrorContains(t, m.write(t.Context(), numbered(2)), "it panicked")
	_, ok := m.load(t.Context())
	require.False(t, ok)
	require.ErrorContains(t, m.close(t.Context(), numbered(3)), "it panicked", "it is not called again")
}

// TestAStorageThatHangsHoldsUpNothing covers a storage that hangs and ignores contexts.
func TestAStorageThatHangsHoldsUpNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &slowClient{entered: make(chan struct{}), proceed: make(chan struct{}), deaf: true}
		m := newMemory(c, zap.NewNop())
		m.save(numbered(1))
		<-c.entered
		require.ErrorContains(t, m.close(t.Context(), numbered(2)), "it does not answer")
		c.proceed <- struct{}{}
		require.Eventually(t, func() bool { _, sets := c.state(); return sets == 1 }, time.Minute, time.Millisecond)
		require.Zero(t, c.closed)
	})
}

func TestARecordThatCannotBeUnderstoodIsSaidAndReplaced(t *testing.T) {
	good, err := encodeRecord(numbered(1))
	require.NoError(t, err)
	for name, tc := range map[string]struct {
		value []byte
		says  string
	}{
		"empty":             {[]byte{}, "the stored record is corrupt"},
		"cut off":           {good[:len(good)/2], "the stored record is corrupt"},
		"of another use":    {[]byte(`{"version":1,"snapshot":[1,2]}`), "the stored record is corrupt"},
		"newer":             {[]byte(`{"version":2,"cooldowns":{}}`), "the stored record is of version 2, and this collector knows 1"},
		"without a version": {[]byte(`{}`), "the stored record is of version 0"},
		"huge":              {append(good[:len(good):len(good)], make([]byte, maxRecord)...), "at most 16777216 are read"},
	} {
		t.Run(name, func(t *testing.T) {
			client, err := openStorage(t.Context(), fileStorage(t, t.TempDir()), ownerID)
			require.NoError(t, err)
			require.NoError(t, client.Set(t.Context(), recordKey, tc.value))
			core, logs := observer.New(zapcore.InfoLevel)
			m := newMemory(client, zap.New(core))
			got, ok := m.load(t.Context())
			require.False(t, ok)
			require.Zero(t, got)
			entries := logs.FilterMessage("cannot restore cooldowns and budgets").All()
			require.Len(t, entries, 1)
			require.Contains(t, entries[0].ContextMap()["error"], tc.says)
			m.save(numbered(7))
			require.Eventually(t, func() bool { s, _ := m.load(t.Context()); return number(s) == 7 }, time.Minute, time.Millisecond)
			require.NoError(t, m.close(t.Context(), numbered(8)))
		})
	}
}

// slowClient is a storage that can block and can return an error.
type slowClient struct {
	storage.Client
	entered chan struct{} // receives a token for each write that began; nil means that no token is sent
	proceed chan struct{} // a token lets a write end; if nil, writes end at once
	deaf    bool          // ignores contexts

	mu     sync.Mutex
	err    error
	values []int
	sets   int
	closed int
}

func (c *slowClient) Set(ctx context.Context, _ string, value []byte) error {
	if c.entered != nil {
		c.entered <- struct{}{}
	}
	if c.deaf {
		<-c.proceed
	} else if c.proceed != nil {
		select {
		case <-c.proceed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sets++
	if c.err != nil {
		return c.err
	}
	s, err := decodeRecord(value)
	c.values = append(c.values, number(s))
	return err
}

func (c *slowClient) Close(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed++
	return nil
}

func (c *slowClient) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
}

func (c *slowClient) state() (values []int, sets int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]int{}, c.values...), c.sets
}

func TestSavingWaitsForNoStorageAndTheLatestWins(t *testing.T) {
	c := &slowClient{entered: make(chan struct{}), proceed: make(chan struct{})}
	m := newMemory(c, zap.NewNop())
	m.save(numbered(1))
	<-c.entered
	for n := 2; n <= 1000; n++ { // no call waits for the blocked write
		m.save(numbered(n))
	}
	c.proceed <- struct{}{}
	<-c.entered
	c.proceed <- struct{}{}
	require.Eventually(t, func() bool { values, _ := c.state(); return len(values) == 2 }, time.Minute, time.Millisecond)

	// At shutdown, a blocked write is cancelled. Shutdown waits for the last write.
	m.save(numbered(1001))
	<-c.entered
	done := make(chan error)
	go func() { done <- m.close(context.Background(), numbered(1002)) }()
	<-c.entered
	c.proceed <- struct{}{}
	require.NoError(t, <-done)
	values, _ := c.state()
	require.Equal(t, []int{1, 1000, 1002}, values, "what a hanging write missed is left out")
	require.Equal(t, 1, c.closed)
}

func TestSavingThatFailsIsSaidOncePerEpisode(t *testing.T) {
	core, logs := observer.New(zapcore.InfoLevel)
	c := &slowClient{}
	m := newMemory(c, zap.New(core))
	n := 0
	save := func(times int) {
		t.Helper()
		for range times {
			n++
			_, before := c.state()
			m.save(numbered(n))
			require.Eventually(t, func() bool { _, sets := c.state(); return sets > before }, time.Minute, time.Millisecond)
		}
	}
	for range 2 {
		logs.TakeAll()
		c.fail(storage.ErrStorageFull)
		save(3)
		c.fail(nil)
		save(1)
		require.Eventually(t, func() bool { return logs.Len() >= 2 }, time.Minute, time.Millisecond)
		all := logs.All()
		require.Len(t, all, 2)
		require.Equal(t, "cannot save cooldowns and budgets", all[0].Message)
		require.Equal(t, storage.ErrStorageFull.Error(), all[0].ContextMap()["error"])
		require.Equal(t, "saved cooldowns and budgets again", all[1].Message)
		require.EqualValues(t, 3, all[1].ContextMap()["failed"])
	}
	c.fail(storage.ErrStorageFull)
	require.ErrorIs(t, m.close(t.Context(), numbered(-2)), storage.ErrStorageFull)
	require.Equal(t, 1, c.closed, "closed all the same")
}

func TestARecordTooLargeIsNotWritten(t *testing.T) {
	c := &slowClient{}
	m := newMemory(c, zap.NewNop())
	large := numbered(1)
	large.Units[0].Name = strings.Repeat("x", maxRecord)
	require.ErrorContains(t, m.close(t.Context(), large), "at most 16777216 are kept")
	_, sets := c.state()
	require.Zero(t, sets)
}

// tell is a storage client that writes the number of each saved snapshot to out.
type tell struct {
	storage.Client
	out io.Writer
}

func (c tell) Set(ctx context.Context, key string, value []byte) error {
	if err := c.Client.Set(ctx, key, value); err != nil {
		return err
	}
	s, err := decodeRecord(value)
	fmt.Fprintln(c.out, number(s))
	return err
}

const saveForever = "HOTPROFILE_TEST_SAVE_FOREVER"

// TestSaveForever is not a test of its own. The next test runs TestSaveForever in a
// separate process, and kills that process.
func TestSaveForever(t *testing.T) {
	dir := os.Getenv(saveForever)
	if dir == "" {
		t.Skip("started by the test of a kill")
	}
	client, err := openStorage(t.Context(), fileStorage(t, dir), ownerID)
	require.NoError(t, err)
	m := newMemory(tell{client, os.Stdout}, zap.NewNop())
	for n, end := 1, time.Now().Add(time.Minute); time.Now().Before(end); n++ { // also ends without being killed
		m.save(numbered(n))
	}
	require.NoError(t, m.close(context.Background(), numbered(0)))
}

func TestWhatWasSavedBeforeAKillIsThere(t *testing.T) {
	dir := t.TempDir()
	for kill := range 3 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestSaveForever$")
		cmd.Env = append(os.Environ(), saveForever+"="+dir)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		told := 0
		lines := bufio.NewScanner(out)
		for i := 0; lines.Scan(); i++ {
			n, err := strconv.Atoi(lines.Text())
			require.NoError(t, err, lines.Text())
			told = n
			if i == 20+kill {
				require.NoError(t, cmd.Process.Kill()) // the test also reads lines that are written before the process ends
			}
		}
		require.Error(t, cmd.Wait(), "it was killed")
		require.Positive(t, told)

		client, err := openStorage(t.Context(), fileStorage(t, dir), ownerID)
		require.NoError(t, err)
		m := newMemory(client, zap.NewNop())
		got, ok := m.load(t.Context())
		require.True(t, ok)
		require.GreaterOrEqual(t, number(got), told)
		require.Equal(t, numbered(number(got)), got)
		require.NoError(t, m.close(t.Context(), numbered(0)))
	}
}

func FuzzRecord(f *testing.F) {
	good, err := encodeRecord(numbered(1))
	require.NoError(f, err)
	f.Add(good)
	f.Add([]byte(`{"version":1,"taken":"2026-05-28T20:00:00Z","snapshot":{}}`))
	f.Add([]byte(`{"version":2}`))
	f.Add([]byte(`{"version":1,"snapshot":{"units":[{"name":1}]}}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, value []byte) {
		s, err := decodeRecord(value)
		if err != nil {
			require.Zero(t, s)
			return
		}
		again, err := encodeRecord(s)
		require.NoError(t, err)
		require.True(t, json.Valid(again))
		back, err := decodeRecord(again)
		require.NoError(t, err)
		require.True(t, s.Taken.Equal(back.Taken))
		require.Len(t, back.Units, len(s.Units))
	})
}

// hostWith is a host with extensions.
type hostWith map[component.ID]component.Component

func (h hostWith) GetExtensions() map[component.ID]component.Component { return h }

type notAStorage struct{ component.Component }
