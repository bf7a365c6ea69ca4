// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/sync/semaphore"
)

const (
	// computedAtOnce is the maximum number of responses that are computed concurrently.
	computedAtOnce = 2
	// answerBytes is the maximum total size, in bytes, of all responses that have not yet
	// been written to their clients.
	answerBytes = 64 << 20
	// writeTimeout is the maximum time for sending a response to a client.
	writeTimeout = 30 * time.Second
)

// answers computes each response only once for all clients that request it before it is
// ready. It limits the number of concurrent computations, and the total size of all
// responses. Requests beyond these limits wait.
type answers struct {
	computing *semaphore.Weighted
	held      *semaphore.Weighted

	mu     sync.Mutex
	shared map[string]*answer
}

func newAnswers() *answers {
	return &answers{
		computing: semaphore.NewWeighted(computedAtOnce), held: semaphore.NewWeighted(answerBytes),
		shared: map[string]*answer{},
	}
}

// answer holds the response of a handler. It implements http.ResponseWriter.
type answer struct {
	ctx    context.Context
	header http.Header
	status int
	body   bytes.Buffer
	err    error

	ready   chan struct{} // closed when the answer is complete
	readers int           // guarded by answers.mu; the computation counts as one reader
	weight  int64         // bytes that are held in answers.held
}

func newAnswer(ctx context.Context) *answer {
	return &answer{ctx: ctx, header: http.Header{}, status: http.StatusOK, ready: make(chan struct{}), readers: 1}
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) { a.status = status }

// Write implements http.ResponseWriter. After the deadline, it returns an error, which
// stops a template that takes too long.
func (a *answer) Write(p []byte) (int, error) {
	if err := a.ctx.Err(); err != nil {
		return 0, err
	}
	return a.body.Write(p)
}

// get returns the response for a key. If no other request is computing this response, get
// calls compute to write it. get fails if ctx ends before the response is ready. The
// caller must call release.
func (s *answers) get(ctx context.Context, key string, timeout time.Duration, compute func(context.Context, http.ResponseWriter)) (*answer, error) {
	s.mu.Lock()
	a := s.shared[key]
	if a == nil {
		a = newAnswer(context.Background())
		s.shared[key] = a
		go s.compute(key, a, timeout, compute)
	}
	a.readers++
	s.mu.Unlock()
	select {
	case <-a.ready:
	case <-ctx.Done():
		s.release(a)
		return nil, ctx.Err()
	}
	if a.err != nil {
		s.release(a)
		return nil, a.err
	}
	return a, nil
}

// compute computes a response within timeout. The computation continues if a client
// disconnects, because other clients may be waiting for the same response.
func (s *answers) compute(key string, a *answer, timeout time.Duration, compute func(context.Context, http.ResponseWriter)) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	defer func() {
		s.mu.Lock()
		delete(s.shared, key)
		s.mu.Unlock()
		close(a.ready)
		s.release(a)
	}()
	if a.err = s.computing.Acquire(ctx, 1); a.err != nil {
		return
	}
	defer s.computing.Release(1)
	a.ctx = ctx
	compute(ctx, a)
	a.finish()
	weight := min(int64(a.body.Cap()), answerBytes)
	if a.err = s.held.Acquire(ctx, weight); a.err != nil {
		a.body = bytes.Buffer{}
		return
	}
	a.weight = weight
}

// release is called when a client no longer needs a response. After the last client, it
// frees the memory that is reserved for the response.
func (s *answers) release(a *answer) {
	s.mu.Lock()
	a.readers--
	last := a.readers == 0
	s.mu.Unlock()
	if last {
		s.held.Release(a.weight)
	}
}

// finish escapes control characters in a page, and characters that change
// the text direction. Names and attributes come from other programs and
// may contain such characters.
func (a *answer) finish() {
	if !strings.HasPrefix(a.header.Get("Content-Type"), "text/html") || bytes.IndexFunc(a.body.Bytes(), isHidden) < 0 {
		return
	}
	var b bytes.Buffer
	for _, r := range a.body.String() {
		if isHidden(r) {
			b.WriteString(escaped(r))
		} else {
			b.WriteRune(r)
		}
	}
	a.body = b
}

func isHidden(r rune) bool {
	return r != '\n' && r != '\t' && r != '\r' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r))
}

// writeTo writes the response to a client.
func (a *answer) writeTo(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // writers in tests have no deadline
	for name, values := range a.header {
		w.Header()[name] = values
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body.Bytes()) // an error means that the browser is gone
}
