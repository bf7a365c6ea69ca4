// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package late

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWait(t *testing.T) {
	ended, stop := context.WithCancel(t.Context())
	stop()
	never := func() { t.Error("the work has ended, and is not cancelled") }
	done := make(chan struct{})
	close(done)
	require.True(t, Wait(t.Context(), done, never, time.Hour))

	cancelled := make(chan struct{})
	require.True(t, Wait(ended, cancelled, func() { close(cancelled) }, time.Hour), "the work ends when it is cancelled")

	n := 0
	require.False(t, Wait(ended, make(chan struct{}), func() { n++ }, time.Millisecond), "the work ignores that it is cancelled")
	require.Equal(t, 1, n)
}

func TestCall(t *testing.T) {
	failed := errors.New("failed")
	require.ErrorIs(t, Call(t.Context(), func() error { return failed }), failed)
	require.NoError(t, Call(t.Context(), func() error { return nil }))

	ctx, cancel := context.WithCancel(t.Context())
	free, done := make(chan struct{}), make(chan struct{})
	err := Call(ctx, func() error {
		defer close(done)
		cancel()
		<-free
		return failed
	})
	require.ErrorIs(t, err, context.Canceled, "the function is left behind")
	close(free)
	<-done
}
