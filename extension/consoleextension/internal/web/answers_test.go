// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
)

func TestAnAnswerIsComputedOnceForAllThatWaitForIt(t *testing.T) {
	s := newAnswers()
	var computed atomic.Int32
	begin := make(chan struct{})
	compute := func(_ context.Context, w http.ResponseWriter) {
		computed.Add(1)
		<-begin
		w.WriteHeader(http.StatusTeapot)
		_, _ = w.Write([]byte("tea"))
	}
	var readers sync.WaitGroup
	for range 20 {
		readers.Go(func() {
			a, err := s.get(t.Context(), "key", time.Minute, compute)
			if err != nil {
				t.Error(err)
				return
			}
			defer s.release(a)
			w := httptest.NewRecorder()
			a.writeTo(w)
			if w.Code != http.StatusTeapot || w.Body.String() != "tea" {
				t.Error(w.Code, w.Body)
			}
		})
	}
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.shared["key"] != nil && s.shared["key"].readers == 21
	}, 30*time.Second, time.Millisecond)
	close(begin)
	readers.Wait()
	require.EqualValues(t, 1, computed.Load())
	require.True(t, s.held.TryAcquire(answerBytes), "all bytes were given back")
	s.held.Release(answerBytes)
	a, err := s.get(t.Context(), "key", time.Minute, compute)
	require.NoError(t, err)
	s.release(a)
	require.EqualValues(t, 2, computed.Load(), "the next reader gets a new one")
}

// TestAnswersAreBounded checks the limits on concurrent computations and on the bytes
// of responses in memory. The limits must also hold when readers read slowly. A reader
// that waits too long gets an error.
func TestAnswersAreBounded(t *testing.T) {
	s := newAnswers()
	var now, most atomic.Int32
	large := strings.Repeat("x", answerBytes/4)
	compute := func(_ context.Context, w http.ResponseWriter) {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		_, _ = w.Write([]byte(large))
	}
	var taken []*answer
	refused := 0
	for n := range 12 {
		a, err := s.get(t.Context(), fmt.Sprint(n), 50*time.Millisecond, compute)
		if err != nil {
			require.ErrorIs(t, err, context.DeadlineExceeded)
			refused++
			continue
		}
		taken = append(taken, a) // this reader does not read
	}
	require.LessOrEqual(t, len(taken), 4)
	require.Equal(t, 12, refused+len(taken))
	for _, a := range taken {
		s.release(a)
	}
	require.True(t, s.held.TryAcquire(answerBytes))
	s.held.Release(answerBytes)

	var readers sync.WaitGroup
	for n := range 30 {
		readers.Go(func() {
			if a, err := s.get(t.Context(), fmt.Sprint(n), time.Minute, compute); err == nil {
				s.release(a)
			} else {
				t.Error(err)
			}
		})
	}
	readers.Wait()
	require.LessOrEqual(t, most.Load(), int32(computedAtOnce))
}

func TestAnAnswerThatIsLateEnds(t *testing.T) {
	s := newAnswers()
	ended := make(chan error, 1)
	a, err := s.get(t.Context(), "key", 10*time.Millisecond, func(ctx context.Context, w http.ResponseWriter) {
		<-ctx.Done()
		_, err := w.Write([]byte("late"))
		ended <- err
	})
	require.ErrorIs(t, <-ended, context.DeadlineExceeded)
	if err == nil { // the handler may have written before the deadline
		s.release(a)
	}
}

func TestPagesHaveNoCharactersThatHideOthers(t *testing.T) {
	written := func(contentType string) string {
		a := newAnswer(t.Context())
		a.Header().Set("Content-Type", contentType)
		_, _ = a.Write([]byte("<p title=\"\x1b[31m\">é\u202egpj\u2066.exe\n\t\x00</p>"))
		a.finish()
		w := httptest.NewRecorder()
		a.writeTo(w)
		return w.Body.String()
	}
	require.Equal(t, `<p title="\x1b[31m">é\u202egpj\u2066.exe`+"\n\t"+`\x00</p>`, written("text/html; charset=utf-8"))
	require.Contains(t, written("application/octet-stream"), "\x1b")
}

// slowStore is a store whose method Openings is slow.
type slowStore struct {
	*Memory
	while     time.Duration // 0 means until the end of the request's context
	now, most atomic.Int32
}

func (s *slowStore) Openings(ctx context.Context, q store.OpeningQuery) ([]store.Opening, error) {
	n := s.now.Add(1)
	defer s.now.Add(-1)
	for m := s.most.Load(); n > m && !s.most.CompareAndSwap(m, n); m = s.most.Load() {
	}
	if s.while > 0 {
		time.Sleep(s.while)
		return s.Memory.Openings(ctx, q)
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestPagesAreBounded checks that the limits on responses apply to pages.
func TestPagesAreBounded(t *testing.T) {
	slow := &slowStore{Memory: Demo(testNow), while: 20 * time.Millisecond}
	h := newTestServer(t, slow.Memory, func(o *Options) { o.Store = slow })
	var readers sync.WaitGroup
	for n := range 20 {
		readers.Go(func() {
			if w := get(t, h, fmt.Sprintf("/?n=%d", n)); w.Code != http.StatusOK {
				t.Error(w.Code, w.Body)
			}
		})
	}
	readers.Wait()
	require.LessOrEqual(t, slow.most.Load(), int32(computedAtOnce))

	slow = &slowStore{Memory: slow.Memory}
	h = newTestServer(t, slow.Memory, func(o *Options) { o.Store, o.readTimeout = slow, 10*time.Millisecond })
	w := get(t, h, "/")
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.Equal(t, "5", w.Header().Get("Retry-After"))
}
