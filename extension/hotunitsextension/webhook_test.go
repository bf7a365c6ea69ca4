// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hotunitsextension

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"go.yaml.in/yaml/v3"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension/internal/metadata"
)

const waiting = time.Minute

// load parses and validates a configuration.
func load(t *testing.T, text string) (*Config, error) {
	t.Helper()
	var raw map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(text), &raw))
	cfg := NewFactory().CreateDefaultConfig().(*Config)
	if err := confmap.NewFromStringMap(raw).Unmarshal(cfg); err != nil {
		return nil, err
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	for i := range cfg.Webhooks {
		if err := cfg.Webhooks[i].Validate(); err != nil {
			return nil, err
		}
	}
	return cfg, nil
}

// newWebhooks creates the extension with a configuration in
// the same way as the collector.
func newWebhooks(t *testing.T, config string) (*rig, error) {
	t.Helper()
	cfg, err := load(t, config)
	require.NoError(t, err)
	core, logs := observer.New(zapcore.DebugLevel)
	r := &rig{logs: logs, telemetry: componenttest.NewTelemetry()}
	set := extension.Settings{ID: component.NewID(metadata.Type), TelemetrySettings: r.telemetry.NewTelemetrySettings()}
	set.Logger = zap.New(core)
	ext, err := NewFactory().Create(t.Context(), set, cfg)
	require.NoError(t, err)
	r.HotUnits = ext.(*HotUnits)
	t.Cleanup(func() {
		require.NoError(t, ext.Shutdown(context.Background()))
		require.NoError(t, r.telemetry.Shutdown(context.Background()))
	})
	return r, ext.Start(t.Context(), componenttest.NewNopHost())
}

func startWebhooks(t *testing.T, config string) *rig {
	t.Helper()
	r, err := newWebhooks(t, config)
	require.NoError(t, err)
	return r
}

// outcomes returns the number of events for each outcome.
func (r *rig) outcomes() map[string]int64 {
	out := map[string]int64{}
	m, err := r.telemetry.GetMetric("otelcol_hot_units.webhook.events")
	if err != nil {
		return out
	}
	for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
		v, _ := p.Attributes.Value("outcome")
		out[v.AsString()] += p.Value
	}
	return out
}

// receiver is an HTTP server whose responses are defined by the test.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	bodies []string
	header http.Header // header of the last request

	// These fields must not change while the server runs.
	retryAfter string // value of the header Retry-After in responses
	cutsOff    bool   // whether the test cancels requests before they end
}

// newReceiver returns a server that responds with the given status codes in order. The
// last code is used for all further requests.
func newReceiver(t *testing.T, codes ...int) *receiver {
	t.Helper()
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			if !r.cutsOff {
				t.Error(err)
			}
			return
		}
		r.mu.Lock()
		code := http.StatusOK
		if n := len(r.bodies); n < len(codes) {
			code = codes[n]
		} else if len(codes) > 0 {
			code = codes[len(codes)-1]
		}
		r.bodies = append(r.bodies, string(body))
		r.header = req.Header
		r.mu.Unlock()
		if r.retryAfter != "" {
			w.Header().Set("Retry-After", r.retryAfter)
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, strings.Repeat("no ", 10_000)) // more than the extension reads
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) received() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.bodies)
}

// one waits for the first request and returns its body.
func (r *receiver) one(t *testing.T) string {
	t.Helper()
	require.Eventually(t, func() bool { return len(r.received()) > 0 }, waiting, time.Millisecond)
	return r.received()[0]
}

var openedEvent = Event{
	Name: GateOpened, Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Body: "gate of <!channel> \"checkout\" opened by policy cpu",
	Resource:   []attribute.KeyValue{attribute.String("service.name", "checkout"), attribute.String("host.name", "node-1")},
	Attributes: []attribute.KeyValue{attribute.String("hotprofile.unit", "4f1c"), attribute.Float64("hotprofile.trigger.value", 93.5), attribute.String("hotprofile.trigger.id", "ab12")},
	TraceID:    trace.TraceID{1}, SpanID: trace.SpanID{2},
}

func TestAWebhookPostsEventsAsJSON(t *testing.T) {
	to := newReceiver(t)
	r := startWebhooks(t, fmt.Sprintf("webhooks: [{endpoint: %q, group_wait: 0s, headers: {X-Token: secret}}]", to.URL+"/path"))
	r.PublishEvent(Event{Name: GateClosed})
	r.PublishEvent(openedEvent)
	require.JSONEq(t, `{"events": [{
		"name": "hotprofile.gate.opened", "time": "2026-01-02T03:04:05Z", "body": "gate of <!channel> \"checkout\" opened by policy cpu",
		"resource": {"service.name": "checkout", "host.name": "node-1"},
		"attributes": {"hotprofile.unit": "4f1c", "hotprofile.trigger.value": 93.5, "hotprofile.trigger.id": "ab12"},
		"trace_id": "01000000000000000000000000000000", "span_id": "0200000000000000"
	}], "more": 0}`, to.one(t))
	require.Equal(t, "application/json", to.header.Get("Content-Type"))
	require.Equal(t, "secret", to.header.Get("X-Token"))
	require.Eventually(t, func() bool { return r.outcomes()["posted"] == 1 }, waiting, time.Millisecond)
}

func TestSlackAndTeamsTemplates(t *testing.T) {
	hostile := openedEvent
	hostile.Body = strings.Repeat("\x00<&[x](http://evil)`\"", 100)
	hostile.Attributes = []attribute.KeyValue{
		attribute.String("hotprofile.unit", strings.Repeat("\n<ä", 400)), attribute.String("host.name", strings.Repeat("\"<", 400)), attribute.String("hotprofile.trigger.id", strings.Repeat("]", 400)),
	}
	many := slices.Repeat([]Event{hostile}, maxMaxEvents)
	t.Run("slack", func(t *testing.T) {
		r, err := newRenderer("slack", true)
		require.NoError(t, err)
		body, err := r.render(messageOf([]Event{openedEvent}, 2))
		require.NoError(t, err)
		require.JSONEq(t, `{
			"text": "gate of &lt;!channel&gt; \"checkout\" opened by policy cpu",
			"blocks": [
				{"type": "section", "text": {"type": "mrkdwn", "text": "*gate opened* gate of &lt;!channel&gt; \"checkout\" opened by policy cpu\nunit `+"`4f1c` on `node-1` trigger `ab12`"+`"}},
				{"type": "section", "text": {"type": "mrkdwn", "text": "and 2 more events"}}
			]}`, string(body))
		body, err = r.render(messageOf(many, 1))
		require.NoError(t, err)
		var m struct {
			Blocks []struct{ Text struct{ Text string } }
		}
		require.NoError(t, json.Unmarshal(body, &m))
		require.Len(t, m.Blocks, maxMaxEvents+1, "Slack shows 50")
		for _, b := range m.Blocks {
			require.LessOrEqual(t, len(b.Text.Text), 5000)
			require.LessOrEqual(t, len([]rune(b.Text.Text)), 3000, "Slack's bound")
			require.NotContains(t, b.Text.Text, "<")
		}
	})
	t.Run("teams", func(t *testing.T) {
		r, err := newRenderer("teams", true)
		require.NoError(t, err)
		body, err := r.render(messageOf([]Event{openedEvent}, 2))
		require.NoError(t, err)
		// The whole message is compared, because Workflows rejects a card whose version,
		// schema or types it does not know.
		const card = `{"type": "message", "attachments": [{
			"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": null,
			"content": {"$schema": "http://adaptivecards.io/schemas/adaptive-card.json", "type": "AdaptiveCard", "version": "1.4", "body": [%s]}}]}`
		element := func(title, body, unit, host, trigger string) string {
			return fmt.Sprintf(`
				{"type": "TextBlock", "wrap": true, "weight": "Bolder", "separator": true, "text": %q},
				{"type": "TextBlock", "wrap": true, "text": %q},
				{"type": "FactSet", "facts": [{"title": "unit", "value": %q}, {"title": "host", "value": %q}, {"title": "trigger", "value": %q}]}`,
				title, body, unit, host, trigger)
		}
		more := func(n int) string {
			return fmt.Sprintf(`, {"type": "TextBlock", "wrap": true, "text": "and %d more events"}`, n)
		}
		require.JSONEq(t, fmt.Sprintf(card, element("gate opened", openedEvent.Body, "4f1c", "node-1", "ab12")+more(2)), string(body))

		named := openedEvent
		named.Body = "gate of \"a\"\n# b\r\n- **c** `d` [e](http://evil) opened"
		named.Resource = []attribute.KeyValue{attribute.String("host.name", "n\"1\"\n")}
		named.Attributes = []attribute.KeyValue{attribute.String("hotprofile.unit", "/x\\y\t[z]"), attribute.String("hotprofile.trigger.id", "")}
		body, err = r.render(messageOf([]Event{named, openedEvent}, 0))
		require.NoError(t, err)
		require.JSONEq(t, fmt.Sprintf(card,
			element("gate opened", "gate of \"a\" # b  - **c** `d` (e)(http://evil) opened", "/x\\y (z)", "n\"1\" ", "")+","+
				element("gate opened", openedEvent.Body, "4f1c", "node-1", "ab12")), string(body))

		body, err = r.render(messageOf(many, 1))
		require.NoError(t, err)
		require.LessOrEqual(t, len(body), 28<<10, "Teams' bound")
		require.NotContains(t, string(body), "](", "no link")
		one := func(text string, n int) string {
			text = strings.NewReplacer("[", "(", "]", ")", "\n", " ", "\x00", " ").Replace(text)
			return strings.ToValidUTF8(text[:n], "") + "…"
		}
		elements := slices.Repeat([]string{element("gate opened", one(hostile.Body, 250), one(strings.Repeat("\n<ä", 400), 128), one(strings.Repeat("\"<", 400), 64), one(strings.Repeat("]", 400), 40))}, maxMaxEvents)
		require.JSONEq(t, fmt.Sprintf(card, strings.Join(elements, ",")+more(1)), string(body))
	})
}

func TestTemplatesOfFiles(t *testing.T) {
	dir := t.TempDir()
	file := func(text string) string {
		name := filepath.Join(dir, fmt.Sprintf("%d.tmpl", len(text)))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	render := func(name string, isJSON bool) (string, error) {
		r, err := newRenderer(name, isJSON)
		if err != nil {
			return "", err
		}
		body, err := r.render(messageOf([]Event{openedEvent}, 0))
		return string(body), err
	}
	got, err := render(file(`{"n": {{len .Events}}, "service": {{(index .Events 0).Get "service.name" | json}}, "none": {{(index .Events 0).Get "none" | json}}}`), true)
	require.NoError(t, err)
	require.JSONEq(t, `{"n": 1, "service": "checkout", "none": ""}`, got)
	got, err = render(file(`{{range .Events}}{{.Title}}{{end}}`), false)
	require.NoError(t, err)
	require.Equal(t, "gate opened", got)
	for text, want := range map[string]string{
		`{{.Nothing}}`:                 "can't evaluate field Nothing",
		`{{range .Events}}`:            "parse the template",
		`"{{(index .Events 0).Body}}"`: "is no JSON",
		`{{define "x"}}aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa{{template "x"}}{{end}}{{template "x"}}`: "more than 1048576 bytes",
		`{{range 9000000000000}}{{end}}`:                                                         "more than 100000 steps",
		`{{if .}}{{range 9000000000000}}{{end}}{{end}}`:                                          "more than 100000 steps",
		`{{define "y"}}{{template "y"}}{{template "y"}}{{end}}{{with 1}}{{template "y"}}{{end}}`: "more than 100000 steps",
	} {
		_, err := render(file(text), true)
		require.ErrorContains(t, err, want, text)
	}
	_, err = render(filepath.Join(dir, "none"), true)
	require.ErrorContains(t, err, "json, slack, teams, or the path of a file")
	_, err = render(dir, true)
	require.ErrorContains(t, err, "not a regular file")
	_, err = render(file(strings.Repeat(" ", maxTemplateSize+1)), true)
	require.ErrorContains(t, err, "more than 1048576 bytes")
	_, err = newWebhooks(t, `webhooks: [{endpoint: "http://localhost/secret", template: /none}]`)
	require.ErrorContains(t, err, "webhooks[0] localhost: read the template")
	require.NotContains(t, err.Error(), "secret")
}

// TestAStormIsOneRequest publishes many events at once. The request must contain the
// first events, and the number of the other events. Each event must be counted once.
func TestAStormIsOneRequest(t *testing.T) {
	to := newReceiver(t)
	r := startWebhooks(t, fmt.Sprintf("webhooks: [{endpoint: %q, group_wait: 5m, max_events: 3}]", to.URL))
	const storm = 10_000
	for range storm {
		r.PublishEvent(openedEvent)
	}
	require.NoError(t, r.Shutdown(t.Context()), "which ends the wait")
	require.Len(t, to.received(), 1)
	var m Message
	require.NoError(t, json.Unmarshal([]byte(to.received()[0]), &m))
	require.Len(t, m.Events, 3)
	outcomes, dropped := r.outcomes(), r.sum("otelcol_hot_units.events.dropped")
	require.EqualValues(t, 3, outcomes["posted"])
	require.EqualValues(t, m.More, outcomes["counted"])
	require.EqualValues(t, storm, outcomes["posted"]+outcomes["counted"]+dropped)
}

// sum returns the sum of a counter over all attributes.
func (r *rig) sum(name string) (sum int64) {
	if m, err := r.telemetry.GetMetric(name); err == nil {
		for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
			sum += p.Value
		}
	}
	return sum
}

func TestAFailedRequestIsRepeatedWithinItsBound(t *testing.T) {
	const fast = "group_wait: 0s, retry_on_failure: {initial_interval: 1ms, max_interval: 1ms}"
	t.Run("until it is accepted", func(t *testing.T) {
		to := newReceiver(t, 500, 429, 408, 204)
		r := startWebhooks(t, fmt.Sprintf("webhooks: [{endpoint: %q, %s}]", to.URL, fast))
		r.PublishEvent(openedEvent)
		require.Eventually(t, func() bool { return r.outcomes()["posted"] == 1 }, waiting, time.Millisecond)
		require.Len(t, to.received(), 4)
		require.Zero(t, r.logs.FilterMessage("webhook failed, events lost").Len())
	})
	t.Run("not if it is refused", func(t *testing.T) {
		to := newReceiver(t, 403, 403, 200)
		r := startWebhooks(t, fmt.Sprintf("webhooks: [{endpoint: %q, %s}]", to.URL+"/secret", fast))
		for i := range 2 {
			r.PublishEvent(openedEvent)
			require.Eventually(t, func() bool { return r.outcomes()["failed"] == int64(i+1) }, waiting, time.Millisecond)
		}
		r.PublishEvent(openedEvent)
		require.Eventually(t, func() bool { return r.logs.FilterMessage("webhook answers again").Len() == 1 }, waiting, time.Millisecond)
		entries := r.logs.FilterMessage("webhook failed, events lost").All()
		require.Len(t, entries, 1, "once until it answers again")
		fields := entries[0].ContextMap()
		require.EqualValues(t, 1, fields["attempts"])
		require.Equal(t, "webhooks[0] "+strings.TrimPrefix(to.URL, "http://"), fields["webhook"])
		require.Regexp(t, "^the answer is 403: (no )+", fields["error"])
		require.Less(t, len(fmt.Sprint(fields["error"])), 300)
		require.Len(t, to.received(), 3)
	})
	t.Run("not if it is turned off", func(t *testing.T) {
		to := newReceiver(t, 500)
		r := startWebhooks(t, fmt.Sprintf("webhooks: [{endpoint: %q, group_wait: 0s, retry_on_failure: {enabled: false}}]", to.URL))
		r.PublishEvent(openedEvent)
		require.Eventually(t, func() bool { return r.outcomes()["failed"] == 1 }, waiting, time.Millisecond)
		require.Len(t, to.received(), 1)
	})
	t.Run("not before the time that the answer asks for", func(t *testing.T) {
		var times []time.Time
		to := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			times = append(times, time.Now()) // there is only one request at a time
			if len(times) == 1 {
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(http.StatusTooManyRequests)
			}
		}))
		t.Cleanup(to.Close)
		r := startWebhooks(t, fmt.Sprintf("webhooks: [{endpoint: %q, %s}]", to.URL, fast))
		r.PublishEvent(openedEvent)
		require.Eventually(t, func() bool { return r.outcomes()["posted"] == 1 }, waiting, time.Millisecond)
		require.Len(t, times, 2)
		require.GreaterOrEqual(t, times[1].Sub(times[0]), time.Second)
	})
	t.Run("not if the answer asks for more than its time", func(t *testing.T) {
		for _, after := range []string{"600", "31536000", "9223372036854775807"} {
			to := newReceiver(t, 503)
			to.retryAfter = after
			r := startWebhooks(t, fmt.Sprintf("webhooks: [{endpoint: %q, %s, group_wait: 0s}]", to.URL, "retry_on_failure: {initial_interval: 1ms, max_interval: 1ms, max_elapsed_time: 5m}"))
			r.PublishEvent(openedEvent)
			require.Eventually(t, func() bool { return r.outcomes()["failed"] == 1 }, waiting, time.Millisecond, "it does not wait")
			require.Len(t, to.received(), 1)
		}
	})
	t.Run("at its own pace if the answer asks for nonsense", func(t *testing.T) {
		for _, after := range []string{"-1", "soon", "1e9", "99999999999999999999"} {
			to := newReceiver(t, 503, 200)
			to.retryAfter = after
			r := startWebhooks(t, fmt.Sprintf("webhooks: [{endpoint: %q, %s}]", to.URL, fast))
			r.PublishEvent(openedEvent)
			require.Eventually(t, func() bool { return r.outcomes()["posted"] == 1 }, waiting, time.Millisecond)
			require.Len(t, to.received(), 2)
		}
	})
	t.Run("until its time is over, and no error has the URL", func(t *testing.T) {
		closed := httptest.NewServer(nil)
		closed.Close()
		r := startWebhooks(t, fmt.Sprintf("webhooks: [{endpoint: %q, group_wait: 0s, retry_on_failure: {initial_interval: 1ms, max_interval: 1ms, max_elapsed_time: 20ms}}]", closed.URL+"/secret"))
		r.PublishEvent(openedEvent)
		require.Eventually(t, func() bool { return r.outcomes()["failed"] == 1 }, waiting, time.Millisecond)
		for _, e := range r.logs.All() {
			require.NotContains(t, fmt.Sprint(e.Message, e.ContextMap()), "secret")
		}
	})
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	other := newReceiver(t)
	to := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	t.Cleanup(to.Close)
	r := startWebhooks(t, fmt.Sprintf("webhooks: [{endpoint: %q, group_wait: 0s}]", to.URL))
	r.PublishEvent(openedEvent)
	require.Eventually(t, func() bool { return r.outcomes()["failed"] == 1 }, waiting, time.Millisecond)
	require.Empty(t, other.received())
}

// TestAWebhookThatNeverAnswers covers a webhook whose server never responds. The webhook
// must not delay publishers or other webhooks, and may delay the shutdown by at most one
// timeout.
func TestAWebhookThatNeverAnswers(t *testing.T) {
	hanging := make(chan struct{}, 100)
	var released atomic.Bool
	release := make(chan struct{})
	stuck := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		hanging <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(func() {
		if !released.Swap(true) {
			close(release)
		}
		stuck.Close()
	})
	other := newReceiver(t)
	other.cutsOff = true
	r := startWebhooks(t, fmt.Sprintf(`
webhooks:
  - {endpoint: %q, group_wait: 0s, timeout: 1m}
  - {endpoint: %q, group_wait: 0s}
`, stuck.URL, other.URL))
	r.PublishEvent(openedEvent)
	<-hanging
	for range 3 * maxEventsWaiting {
		r.PublishEvent(openedEvent)
	}
	other.one(t)
	require.Positive(t, r.sum("otelcol_hot_units.events.dropped"))
	require.Equal(t, 1, r.logs.FilterMessage("events dropped: their subscriber is too slow").FilterField(zap.String("subscriber", "webhooks[0] "+strings.TrimPrefix(stuck.URL, "http://"))).Len())

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, r.Shutdown(ctx), "while the request hangs")
	require.Positive(t, r.outcomes()["failed"])
}

func TestConfigurationOfWebhooksIsChecked(t *testing.T) {
	for text, want := range map[string]string{
		"{}":                                                               "endpoint: is needed",
		"{endpoint: secret}":                                               "endpoint: is not http://HOST",
		"{endpoint: 'http://%zz/secret'}":                                  "endpoint: is not http://HOST",
		"{endpoint: 'http://u:secret@h/'}":                                 "endpoint: must not have a user and password",
		"{endpoint: 'http://h', events: []}":                               "events: names no event",
		"{endpoint: 'http://h', events: [x]}":                              `events[0]: "x" is not one of hotprofile.gate.opened`,
		"{endpoint: 'http://h', template: ''}":                             "template: must not be empty",
		"{endpoint: 'http://h', timeout: 0s}":                              "timeout: 0s is not above 0 and up to 1m0s",
		"{endpoint: 'http://h', group_wait: 1h}":                           "group_wait: 1h0m0s is not between 0s and 5m0s",
		"{endpoint: 'http://h', max_events: 0}":                            "max_events: 0 is not between 1 and 30",
		"{endpoint: 'http://h', retry_on_failure: {max_elapsed_time: 0s}}": "retry_on_failure.max_elapsed_time: 0s is not above 0 and up to 10m0s",
		"{endpoint: 'http://h', unknown: 1}":                               "unknown",
	} {
		_, err := load(t, "webhooks: ["+text+"]")
		require.ErrorContains(t, err, want, text)
		require.NotContains(t, err.Error(), "secret")
	}
	_, err := load(t, "webhooks: ["+strings.Repeat("{endpoint: 'http://h'},", maxWebhooks+1)+"]")
	require.ErrorContains(t, err, "webhooks: 21 are too many")
	cfg, err := load(t, "webhooks: [{endpoint: 'http://h', events: [hotprofile.gate.closed], auth: {authenticator: bearertokenauth}}]")
	require.NoError(t, err)
	require.Equal(t, []string{GateClosed}, cfg.Webhooks[0].Events)
	require.Equal(t, []component.ID{component.MustNewID("bearertokenauth")}, (&HotUnits{cfg: cfg}).Dependencies())
}

// TestEventsThatAWebhookDoesNotWantTakeNoRoom checks the queue of a busy webhook. The
// queue must hold only events that the webhook has subscribed to.
func TestEventsThatAWebhookDoesNotWantTakeNoRoom(t *testing.T) {
	to := newReceiver(t)
	r := startWebhooks(t, fmt.Sprintf("webhooks: [{endpoint: %q, group_wait: 0s, events: [hotprofile.gate.closed]}]", to.URL))
	for range 2 * maxEventsWaiting {
		r.PublishEvent(openedEvent)
	}
	r.PublishEvent(Event{Name: GateClosed})
	require.Contains(t, to.one(t), GateClosed)
	require.Zero(t, r.sum("otelcol_hot_units.events.dropped"))
}
