// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/processor/processortest"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/metadata"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// TestAPolicyFileThatHangsHoldsUpNothing starts and shuts down the processor while the
// policy file cannot be opened. The kernel delays the opening because of a lease on the
// policy file.
func TestAPolicyFileThatHangsHoldsUpNothing(t *testing.T) {
	path := policyFile(t, usagePolicy)
	holder, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer holder.Close()
	cfg, err := load(t, fmt.Sprintf("{policies_from: {file: %q}, policies: [{name: first, any_of: [{monitor: cpu_usage, threshold: 1}]}]}", path))
	require.NoError(t, err)
	cfg.RootPath = t.TempDir()
	p, err := newProcessorAt(processortest.NewNopSettings(metadata.Type), cfg, consumertest.NewNop(), time.Now, &evenly{})
	require.NoError(t, err)
	p.reloadEvery = time.Millisecond
	host := &statusHost{Host: componenttest.NewNopHost()}
	require.NoError(t, p.Start(t.Context(), host))
	require.Equal(t, "usage", p.inForce.Load().cfg.Policies[0].Name)

	require.NoError(t, p.observing.stop(t.Context()))
	p.reloader.timeout = 20 * time.Millisecond
	if _, err := unix.FcntlInt(holder.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		hosttest.SkipUnprivileged(t, "cannot take a lease: %v", err)
	}
	p.observing = nil
	p.observing.add(p.reloader.start())
	require.Eventually(t, func() bool { return errorContains(host.status(), "did not answer in time") }, 30*time.Second, time.Millisecond)
	p.evaluate()
	done := make(chan error, 1)
	go func() { done <- p.Shutdown(t.Context()) }()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(20 * time.Second): // the kernel gives up after 45 s
		t.Fatal("the shutdown waits for the file")
	}
	require.Equal(t, "usage", p.inForce.Load().cfg.Policies[0].Name)
	_, err = unix.FcntlInt(holder.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	require.NoError(t, err)
}
