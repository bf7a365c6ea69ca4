// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hotunitsextension

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v7"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension/internal/metadata"
	"github.com/hotprofile/hotprofile/internal/late"
	"github.com/hotprofile/hotprofile/internal/urls"
)

const (
	// maxAnswer is the maximum number of bytes that are read from a response.
	// maxAnswerLogged is the maximum number of bytes of a response that an error contains.
	maxAnswer       = 4 << 10
	maxAnswerLogged = 200

	// patience is the maximum time that a cancelled request may take to end.
	patience = 5 * time.Second
)

// webhook posts events to a URL, one request at a time. It has its own goroutine.
type webhook struct {
	cfg       WebhookConfig
	name      string
	isJSON    bool
	renderer  renderer
	client    *http.Client
	events    *Subscription
	log       *zap.Logger
	telemetry *metadata.TelemetryBuilder

	running context.Context // until shutdown
	stop    context.CancelFunc
	done    chan struct{}   // closed when the goroutine has ended
	ctx     context.Context // of requests
	cancel  context.CancelFunc

	failing bool // the last request failed, and the failure was logged
}

// group contains the events of one request. more is the number of further events.
type group struct {
	events []Event
	more   int
}

// startWebhook creates a webhook, subscribes it to events and starts its goroutine.
func (h *HotUnits) startWebhook(ctx context.Context, cfg WebhookConfig, name string, host component.Host) (*webhook, error) {
	w := &webhook{
		cfg: cfg, name: name, isJSON: cfg.contentType() == "" || strings.Contains(cfg.contentType(), "json"),
		log: h.log, telemetry: h.telemetry, done: make(chan struct{}),
	}
	var err error
	if w.renderer, err = newRenderer(cfg.Template, w.isJSON); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	set := h.settings
	set.TracerProvider = noop.NewTracerProvider() // spans would contain the URL, which may be a secret
	if w.client, err = cfg.ClientConfig.ToClient(ctx, host.GetExtensions(), set); err != nil {
		return nil, fmt.Errorf("%s: %w", name, urls.Cause(err))
	}
	// Redirects are not followed, because events may only go to the configured host.
	w.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	w.running, w.stop = context.WithCancel(context.Background())
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.events = h.Subscribe(name, cfg.Events...)
	go w.run()
	return w, nil
}

// run posts events until shutdown. At shutdown, it posts the waiting events.
func (w *webhook) run() {
	defer close(w.done)
	for stopped := false; !stopped; {
		var g group
		select {
		case e := <-w.events.Events():
			w.add(&g, e)
		case <-w.running.Done():
			stopped = true
		}
		w.gather(&g)
		if len(g.events) > 0 {
			w.post(g)
		}
	}
	w.client.CloseIdleConnections()
}

// add adds an event. Events beyond max_events are only counted.
func (w *webhook) add(g *group, e Event) {
	if len(g.events) < w.cfg.MaxEvents {
		g.events = append(g.events, e)
	} else {
		g.more++
	}
}

// gather adds the events that arrive within group_wait. At shutdown, it only adds the events
// that are already waiting.
func (w *webhook) gather(g *group) {
	ctx, cancel := context.WithTimeout(w.running, w.cfg.GroupWait)
	defer cancel()
	for ctx.Err() == nil {
		select {
		case e := <-w.events.Events():
			w.add(g, e)
		case <-ctx.Done():
		}
	}
	for _, e := range w.events.AppendWaiting(nil, maxEventsWaiting) {
		w.add(g, e)
	}
}

// post posts a group. If the request fails, post retries it until max_elapsed_time has
// passed. At shutdown, post tries only once more.
func (w *webhook) post(g group) {
	body, err := w.renderer.render(messageOf(g.events, g.more))
	attempts := 0
	if err == nil {
		err = w.deliver(body, &attempts)
	}
	if err != nil {
		w.count(len(g.events)+g.more, "failed")
		if !w.failing {
			w.log.Warn("webhook failed, events lost", zap.String("webhook", w.name),
				zap.Int("lost", len(g.events)+g.more), zap.Int("attempts", attempts), zap.Error(err))
		}
		w.failing = true
		return
	}
	w.count(len(g.events), "posted")
	w.count(g.more, "counted")
	if w.failing {
		w.log.Info("webhook answers again", zap.String("webhook", w.name))
	}
	w.failing = false
}

func (w *webhook) count(n int, outcome string) {
	if n > 0 {
		w.telemetry.HotUnitsWebhookEvents.Add(context.Background(), int64(n),
			metric.WithAttributes(attribute.String("webhook", w.name), attribute.String("outcome", outcome)))
	}
}

// deliver posts a body, and retries after temporary errors. It returns nil if the body was
// accepted, and the last error if no further retry is possible.
func (w *webhook) deliver(body []byte, attempts *int) error {
	begun, retry := time.Now(), w.cfg.Retry
	waits := &backoff.ExponentialBackOff{
		InitialInterval: retry.InitialInterval, MaxInterval: retry.MaxInterval,
		Multiplier: retry.Multiplier, RandomizationFactor: retry.RandomizationFactor,
	}
	waits.Reset()
	for {
		*attempts++
		again, after, err := w.try(body)
		if err == nil || !again || !retry.Enabled || w.running.Err() != nil {
			return err
		}
		wait := max(waits.NextBackOff(), after)
		if time.Since(begun)+wait > retry.MaxElapsedTime {
			return err
		}
		select {
		case <-time.After(wait):
		case <-w.running.Done():
		}
	}
}

// try posts a body once. again is true if a retry may succeed. after is the time to wait
// before the retry, according to the response.
func (w *webhook) try(body []byte) (again bool, after time.Duration, err error) {
	req, err := http.NewRequestWithContext(w.ctx, http.MethodPost, w.cfg.ClientConfig.Endpoint, bytes.NewReader(body))
	if err != nil {
		return false, 0, urls.Cause(err)
	}
	if w.isJSON {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return true, 0, urls.Cause(err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer)) // the status is the essential part
	code := resp.StatusCode
	if code/100 == 2 {
		return false, 0, nil
	}
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
		after = time.Duration(min(seconds, int(maxElapsedTime/time.Second))) * time.Second
	}
	again = code == http.StatusRequestTimeout || code == http.StatusTooManyRequests || code >= 500
	return again, after, fmt.Errorf("the answer is %d: %s", code, firstOf(maxAnswerLogged, strings.ToValidUTF8(string(answer), "")))
}

// shutdown makes the webhook post the waiting events once, and waits until the webhook has
// ended. After the timeout of a request, or when ctx ends, shutdown cancels requests. It
// then waits for at most patience, because a client may ignore the cancellation.
func (w *webhook) shutdown(ctx context.Context) {
	w.events.Close()
	w.stop()
	defer w.cancel()
	ctx, cancel := context.WithTimeout(ctx, w.cfg.ClientConfig.Timeout)
	defer cancel()
	if !late.Wait(ctx, w.done, w.cancel, patience) {
		w.log.Error("webhook does not end, it is left behind", zap.String("webhook", w.name))
	}
}
