// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hotprofile/hotprofile/internal/nativeformat"
)

// config describes the buffers to send, their target and their rate.
type config struct {
	endpoint, socket           string
	buffers                    []*buffer
	rate                       float64
	senders, count             int
	duration                   time.Duration
	compression                string
	resource, authorization    string
	interval, selectedInterval time.Duration
	timeout                    time.Duration
	recordedTimes              bool
}

func (c *config) validate() error {
	var errs []error
	if c.senders < 1 || c.senders > 10_000 {
		errs = append(errs, fmt.Errorf("-senders is %d; 1 to 10,000 can be", c.senders))
	}
	if !(c.rate >= 0 && c.rate <= 1e6) {
		errs = append(errs, fmt.Errorf("-rate is %v; 0 to 1,000,000 can be", c.rate))
	}
	if c.count < 0 || c.duration < 0 || (c.count == 0 && c.duration == 0) {
		errs = append(errs, errors.New("-for or -count has to say when to end"))
	}
	if !slices.Contains([]string{"none", "gzip"}, c.compression) {
		errs = append(errs, fmt.Errorf("-compression is %q; none and gzip can be", c.compression))
	}
	return errors.Join(errs...)
}

// result counts the buffers by outcome.
type result struct {
	senders int
	elapsed time.Duration

	// accepted, refused (status 503) and failed buffers were sent. held and behind buffers
	// were not sent. A buffer is held if a 503 response asked the sender to wait. A buffer is
	// behind if it was overdue because sending the previous buffer took too long.
	accepted, refused, failed, held, behind int
	// samples is the number of samples in accepted buffers. raw and wire are the numbers
	// of bytes that were sent, before and after compression.
	samples, raw, wire int
	firstFailure       string
	took               []time.Duration
}

func (r *result) add(o *result) {
	r.accepted += o.accepted
	r.refused += o.refused
	r.failed += o.failed
	r.held += o.held
	r.behind += o.behind
	r.samples += o.samples
	r.raw += o.raw
	r.wire += o.wire
	if r.firstFailure == "" {
		r.firstFailure = o.firstFailure
	}
	r.took = append(r.took, o.took...)
}

// String returns the result as one line.
func (r *result) String() string {
	sent := r.accepted + r.refused + r.failed
	median, late := time.Duration(0), time.Duration(0)
	if len(r.took) > 0 {
		slices.Sort(r.took)
		median, late = r.took[len(r.took)/2], r.took[len(r.took)*99/100]
	}
	return fmt.Sprintf("sent %d buffers (%d bytes, %d on the wire) in %v from %d senders, %.0f a second: "+
		"%d accepted with %d samples, %d refused with 503, %d failed; "+
		"not sent: %d while asked to wait, %d while the one before was under way; an export took %v (median), %v (99 of 100)",
		sent, r.raw, r.wire, r.elapsed.Round(time.Millisecond), r.senders, float64(sent)/r.elapsed.Seconds(),
		r.accepted, r.samples, r.refused, r.failed, r.held, r.behind,
		median.Round(time.Microsecond), late.Round(time.Microsecond))
}

// maxTook is the maximum number of durations that each sender keeps. When the maximum is
// reached, new durations replace old durations.
const maxTook = 10_000

// send runs all senders and waits until they end.
func send(ctx context.Context, c config) (*result, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	if c.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.duration)
		defer cancel()
	}
	begin := time.Now()
	results := make([]*result, c.senders)
	var all sync.WaitGroup
	for i := range c.senders {
		s, err := newSender(c, i)
		if err != nil {
			return nil, err
		}
		results[i] = &s.did
		all.Go(func() { s.run(ctx) })
	}
	all.Wait()
	total := &result{senders: c.senders, elapsed: time.Since(begin)}
	for _, r := range results {
		total.add(r)
	}
	return total, nil
}

// sender imitates one service. It sends its buffers one after the
// other over its own connection.
type sender struct {
	config
	number int
	client *http.Client
	urls   map[nativeformat.Format]string
	header http.Header

	body   []byte
	zip    *gzip.Writer
	zipped bytes.Buffer

	holdUntil time.Time
	did       result
}

func newSender(c config, number int) (*sender, error) {
	base, err := url.Parse(c.endpoint)
	if err == nil && (base.Scheme == "" || base.Host == "") {
		err = errors.New("no scheme or no host")
	}
	if err != nil {
		return nil, fmt.Errorf("-endpoint %q is no URL such as http://localhost:4319: %w", c.endpoint, err)
	}
	transport := &http.Transport{MaxConnsPerHost: 1, DisableCompression: true}
	if c.socket != "" {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", c.socket)
		}
	}
	s := &sender{config: c, number: number, client: &http.Client{Transport: transport, Timeout: c.timeout}, urls: urls(c, base), header: http.Header{}}
	s.header.Set("Content-Type", "application/octet-stream")
	if resource := strings.ReplaceAll(c.resource, "{sender}", strconv.Itoa(number)); resource != "" {
		s.header.Set("Otel-Resource-Attributes", resource)
	}
	if c.authorization != "" {
		s.header.Set("Authorization", c.authorization)
	}
	switch c.compression {
	case "gzip":
		s.header.Set("Content-Encoding", "gzip")
		s.zip, err = gzip.NewWriterLevel(&s.zipped, gzip.BestSpeed)
	}
	return s, err
}

// urls returns the URL for the buffers of each format.
func urls(c config, base *url.URL) map[nativeformat.Format]string {
	to := func(path string, interval time.Duration, frequent bool) string {
		u, q := base.JoinPath(path), url.Values{}
		if interval > 0 {
			q.Set("interval", strconv.FormatInt(interval.Milliseconds(), 10))
		}
		if frequent {
			q.Set("frequent_sampling", "true")
		}
		u.RawQuery = q.Encode()
		return u.String()
	}
	return map[nativeformat.Format]string{
		{Kind: nativeformat.ThreadSamples}:                         to("v1/dotnet/thread-samples", c.interval, false),
		{Kind: nativeformat.ThreadSamples, FrequentSampling: true}: to("v1/dotnet/thread-samples", c.interval, true),
		{Kind: nativeformat.AllocationSamples}:                     to("v1/dotnet/allocation-samples", 0, false),
		{Kind: nativeformat.SelectedThreadSamples}:                 to("v1/dotnet/selected-thread-samples", c.selectedInterval, false),
	}
}

// run sends buffers until the context is done or the count is reached. Buffer n is due at
// n/rate. A buffer that is due while the sender cannot send is dropped and counted. The
// plugin drops buffers in the same way, because the profiler's own thread never waits.
func (s *sender) run(ctx context.Context) {
	defer s.client.CloseIdleConnections()
	every := time.Duration(0)
	if s.rate > 0 {
		every = time.Duration(float64(time.Second) / s.rate)
	}
	// The first buffers of the senders are spread over one interval.
	due := time.Now().Add(every * time.Duration(s.number) / time.Duration(s.senders))
	for n := 0; s.count == 0 || n < s.count; n++ {
		if every == 0 {
			due = s.holdUntil // without a rate, the next buffer is due when the hold ends
		}
		if !sleep(ctx, time.Until(due)) {
			return
		}
		now := time.Now()
		switch {
		case every > 0 && now.Sub(due) > every:
			s.did.behind++
		case now.Before(s.holdUntil):
			s.did.held++
		default:
			s.export(ctx, s.buffers[n%len(s.buffers)], now)
		}
		due = due.Add(every)
	}
}

// sleep waits for the given time. It returns false if the context is done earlier.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// export sends one buffer and counts its outcome.
func (s *sender) export(ctx context.Context, b *buffer, now time.Time) {
	if s.recordedTimes {
		s.body = append(s.body[:0], b.bytes...)
	} else {
		s.body = b.at(s.body[:0], now.UnixMilli())
	}
	wire, err := s.compress()
	if err != nil {
		s.fail(err.Error())
		return
	}
	to := s.urls[b.format]
	answer, err := s.post(ctx, to, wire)
	if err != nil && ctx.Err() != nil {
		return // the sender itself was stopped, so the buffer has no outcome
	}
	s.did.raw += len(s.body)
	s.did.wire += len(wire)
	took := time.Since(now)
	if len(s.did.took) < maxTook {
		s.did.took = append(s.did.took, took)
	} else {
		s.did.took[(s.did.accepted+s.did.refused+s.did.failed)%maxTook] = took
	}
	switch {
	case err != nil:
		s.fail(err.Error())
	case answer.code == http.StatusAccepted:
		s.did.accepted++
		s.did.samples += b.samples
	case answer.code == http.StatusServiceUnavailable && answer.retryAfter != "":
		s.did.refused++
		s.holdUntil = time.Now().Add(retryAfter(answer.retryAfter, time.Now()))
	default:
		s.fail(fmt.Sprintf("%s answered %d: %s", to, answer.code, answer.text))
	}
}

func (s *sender) fail(why string) {
	s.did.failed++
	if s.did.firstFailure == "" {
		s.did.firstFailure = why
	}
}

func (s *sender) compress() ([]byte, error) {
	switch {
	case s.zip != nil:
		s.zipped.Reset()
		s.zip.Reset(&s.zipped)
		if _, err := s.zip.Write(s.body); err != nil {
			return nil, fmt.Errorf("compress: %w", err)
		}
		if err := s.zip.Close(); err != nil {
			return nil, fmt.Errorf("compress: %w", err)
		}
		return s.zipped.Bytes(), nil
	}
	return s.body, nil
}

// answer is the server's response. text is the beginning of its body.
type answer struct {
	code       int
	retryAfter string
	text       string
}

func (s *sender) post(ctx context.Context, to string, body []byte) (a answer, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	request.Header = s.header
	response, err := s.client.Do(request)
	if err != nil {
		return a, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 4<<10))
	return answer{code: response.StatusCode, retryAfter: response.Header.Get("Retry-After"), text: string(bytes.TrimSpace(text))}, err
}

// retryAfter parses a Retry-After header, which contains a number of seconds or a time. It
// limits the wait to one minute.
func retryAfter(value string, now time.Time) time.Duration {
	const most = time.Minute
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return min(time.Duration(seconds)*time.Second, most)
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(at.Sub(now), 0), most)
	}
	return time.Second
}
