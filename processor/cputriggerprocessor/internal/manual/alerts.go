// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package manual

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/internal/trigger/budget"
	"github.com/hotprofile/hotprofile/internal/truncate"
)

const (
	// maxUnitsOfAlert limits the units for which one alert opens gates. An alert whose
	// labels name more units is ambiguous.
	maxUnitsOfAlert = 8

	// maxOpened limits the remembered openings by alerts. While an opening is remembered,
	// a repeated alert does not open the gate again. When the limit is reached, the least
	// recently repeated opening is forgotten.
	maxOpened = 1024

	// maxNames limits the alert names that become policy names. Further alerts use the
	// policy name otherAlert.
	maxNames   = 256
	maxName    = 128 // bytes
	otherAlert = "alert"

	// StartTolerance is the maximum delay between the start of an alert and the start of a
	// process that the alert names.
	StartTolerance = 2 * time.Second
)

// cgroupLabel is a value in the map of labels. It is not a resource attribute, but marks
// a label that contains the path of a cgroup.
const cgroupLabel = "cgroup"

// defaultLabels returns the resource attribute for each label. The defaults apply if the
// configuration sets no labels.
func defaultLabels() map[string]string {
	return map[string]string{
		"container_id":      attr.ContainerID,
		"namespace":         attr.NamespaceName,
		"pod":               attr.PodName,
		"container":         attr.ContainerName,
		"service_namespace": attr.ServiceNamespace,
		"service_name":      attr.ServiceName,
		"instance":          attr.HostName,
		"pid":               attr.PID,
	}
}

// isBroad reports whether an attribute only names a namespace or host, and not a unit.
func isBroad(attribute string) bool {
	return attribute == attr.NamespaceName || attribute == attr.ServiceNamespace || attribute == attr.HostName
}

// Named contains the identifiers of units in an alert's labels or in a request by hand. The
// first non-empty field is used.
type Named struct {
	Name        string // id of a container, path of a cgroup, or pid, by hand
	ContainerID string
	Cgroup      string // a path
	// PID is the pid of a process that was running on Host at the time
	// Since. Host must be this host.
	PID   string
	Host  string
	Since time.Time // zero: not known
	// Attributes are the resource attributes that the profiles of the units must have.
	Attributes map[string]string
}

// Gates opens and closes gates for one request. The request is made by hand or contains
// alerts.
type Gates interface {
	// Find returns the units that n identifies, and exactly one unit for a Name. If there
	// are no such units, it returns the reason.
	Find(n Named) (found []identify.Identity, why string)
	// Open opens the gate of a unit. opened is false if the same alert already holds the
	// gate open.
	Open(unit identify.Identity, a trigger.Alert, d time.Duration) (o Opened, opened bool, err error)
	// Close closes the opening that the alert with the given key caused for the unit. Close
	// fails with ErrNotOpen if there is no such opening.
	Close(unit, key string) (Closed, error)
}

// An Outcome is the result of an alert. It shows whether a gate was opened or closed, or
// why the gate remained unchanged.
type Outcome string

// These are the outcomes of alerts.
const (
	alertOpened        Outcome = "opened"
	alertAlreadyOpen   Outcome = "already_open"
	alertAlreadyOpened Outcome = "already_opened" // earlier in this firing; the gate has closed since
	alertClosed        Outcome = "closed"
	alertNotOpen       Outcome = "not_open" // the alert is resolved, and no gate is open because of it
	alertOverBudget    Outcome = "over_budget"
	alertTooMany       Outcome = "too_many"
	alertUnknownUnit   Outcome = "unknown_unit"
	alertAmbiguous     Outcome = "ambiguous"
	alertMalformed     Outcome = "malformed"
)

// alertAnswer is the answer for one alert and one unit.
type alertAnswer struct {
	Fingerprint string     `json:"fingerprint,omitempty"`
	Alert       string     `json:"alert,omitempty"`
	Outcome     Outcome    `json:"outcome"`
	Unit        string     `json:"unit,omitempty"`
	TriggerID   string     `json:"trigger_id,omitempty"`
	Until       *time.Time `json:"until,omitempty"`
	Closed      *time.Time `json:"closed,omitempty"`
	StillOpen   []string   `json:"still_open,omitempty"`
	Budget      string     `json:"budget,omitempty"`
	Why         string     `json:"why,omitempty"`
}

// Alerts opens and closes gates for alerts. It is safe for concurrent use.
type Alerts struct {
	labels   map[string]string // attributes by label
	sorted   []string          // names of the labels
	duration time.Duration
	begin    func() Gates
	count    func(Outcome)
	now      func() time.Time
	log      *zap.Logger
	reading  chan struct{} // contains a token for each request whose body is being read or handled

	mu     sync.Mutex // guards the rest; held while a request is handled
	opened *simplelru.LRU[firing, opened]
	names  map[string]bool
}

// firing identifies an alert together with a unit that the alert names.
type firing struct{ fingerprint, unit string }

// opened is an opening by an alert.
type opened struct {
	startsAt time.Time // start of the alert
	id       string
	until    time.Time    // when it closed or will close, unless the unit disappears earlier
	lostUnit *atomic.Bool // set if the unit disappears before until; nil once the firing is resolved
}

// isLost reports whether the opening ended because its unit disappeared.
func (o opened) isLost() bool { return o.lostUnit != nil && o.lostUnit.Load() }

func (o opened) isOpen(now time.Time) bool { return now.Before(o.until) && !o.isLost() }

// NewAlerts returns the handler of alerts. begin is called for each request, and returns
// the gates for the request. count counts an outcome.
func NewAlerts(cfg AlertsConfig, fallback time.Duration, begin func() Gates, count func(Outcome), now func() time.Time, log *zap.Logger) *Alerts {
	labels, duration := cfg.Labels, cfg.Duration
	if len(labels) == 0 {
		labels = defaultLabels()
	}
	if duration == 0 {
		duration = fallback
	}
	remembered, _ := simplelru.NewLRU[firing, opened](maxOpened, nil) // fails only for a size below 1
	return &Alerts{
		labels: labels, sorted: slices.Sorted(maps.Keys(labels)), duration: duration, begin: begin, count: count, now: now, log: log,
		reading: make(chan struct{}, maxReading), opened: remembered, names: map[string]bool{},
	}
}

// handle opens and closes gates for the alerts of one request. It ends early when the
// context ends or the component shuts down.
func (a *Alerts) handle(ctx context.Context, alerts []alert) ([]alertAnswer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	gates := a.begin()
	out := []alertAnswer{} // not null in JSON
	for _, one := range alerts {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var answers []alertAnswer
		err := one.fault
		switch {
		case err != nil:
			answers = []alertAnswer{{Outcome: alertMalformed, Why: err.Error()}}
		case one.Status == resolved:
			answers, err = a.close(gates, one)
		default:
			answers, err = a.open(gates, one)
		}
		if errors.Is(err, ErrShutdown) {
			return nil, err
		}
		for _, answer := range answers {
			answer.Fingerprint, answer.Alert = one.Fingerprint, one.name()
			a.count(answer.Outcome)
			out = append(out, answer)
		}
	}
	a.report(out)
	return out, nil
}

// report logs the alerts that opened no gate. Alertmanager may send every alert to every
// host, so alerts without a unit on this host are only logged at debug level.
func (a *Alerts) report(answers []alertAnswer) {
	counts := map[Outcome]int{}
	var first *alertAnswer
	for i, answer := range answers {
		switch answer.Outcome {
		case alertOverBudget, alertTooMany, alertAmbiguous, alertMalformed:
			counts[answer.Outcome]++
			if first == nil {
				first = &answers[i]
			}
		case alertUnknownUnit:
			a.log.Debug("alert names no unit", zap.String("alert", answer.Alert), zap.String("fingerprint", answer.Fingerprint), zap.String("why", answer.Why))
		}
	}
	if first != nil {
		a.log.Info("alerts opened no gates", zap.Any("outcomes", counts), zap.String("alert", first.Alert),
			zap.String("fingerprint", first.Fingerprint), zap.String("why", first.Why))
	}
}

// open opens the gates of the units that a firing alert names. It opens each gate once per
// firing. If an opening ended because its unit disappeared, for example at a restart, the
// gate is opened again.
func (a *Alerts) open(gates Gates, one alert) ([]alertAnswer, error) {
	now := a.now()
	named, outcome, why := a.named(one)
	var found []identify.Identity
	if outcome == "" {
		if found, why = gates.Find(named); len(found) == 0 {
			outcome = alertUnknownUnit
		} else if len(found) > maxUnitsOfAlert {
			outcome, why = alertAmbiguous, fmt.Sprintf("its labels name more than %d units: add one that names fewer", maxUnitsOfAlert)
		}
	}
	if outcome != "" {
		return []alertAnswer{{Outcome: outcome, Why: why}}, nil
	}
	var out []alertAnswer
	for _, unit := range found {
		key := firing{one.Fingerprint, unit.Name}
		was, known := a.opened.Get(key)
		later := one.StartsAt.After(was.startsAt) // the alert was resolved in between, without a notification
		if known && !was.isLost() && (was.isOpen(now) || !later) {
			if later {
				was.startsAt = one.StartsAt
				a.opened.Add(key, was)
			}
			out = append(out, a.repeated(unit.Name, was, now))
			continue
		}
		o, isNew, err := gates.Open(unit, trigger.Alert{Key: one.Fingerprint, Name: a.policyOf(one)}, a.duration)
		var over *budget.ExceededError
		var missing *NoSuchUnitError
		switch {
		case errors.As(err, &over):
			out = append(out, alertAnswer{Outcome: alertOverBudget, Unit: unit.Name, Budget: over.Budget, Why: err.Error()})
		case errors.Is(err, trigger.ErrTooManyAlerts):
			out = append(out, alertAnswer{Outcome: alertTooMany, Unit: unit.Name, Why: err.Error()})
		case errors.As(err, &missing):
			out = append(out, alertAnswer{Outcome: alertUnknownUnit, Unit: unit.Name, Why: missing.Why})
		case err != nil:
			return out, err
		default:
			a.opened.Add(firing{strings.Clone(one.Fingerprint), unit.Name}, opened{one.StartsAt, o.TriggerID, o.Until, o.LostUnit})
			answer := alertAnswer{Outcome: alertOpened, Unit: unit.Name, TriggerID: o.TriggerID, Until: utc(o.Until)}
			if !isNew {
				answer.Outcome = alertAlreadyOpen
			}
			out = append(out, answer)
		}
	}
	return out, nil
}

// repeated returns the answer for an alert that has already opened the gate of a unit.
func (a *Alerts) repeated(unit string, o opened, now time.Time) alertAnswer {
	if o.isOpen(now) {
		return alertAnswer{Outcome: alertAlreadyOpen, Unit: unit, TriggerID: o.id, Until: utc(o.until)}
	}
	return alertAnswer{
		Outcome: alertAlreadyOpened, Unit: unit, TriggerID: o.id, Closed: utc(o.until),
		Why: "its gate was open for this firing; it opens again when the alert was resolved and fires anew",
	}
}

// close closes the openings of a resolved alert.
func (a *Alerts) close(gates Gates, one alert) (out []alertAnswer, err error) {
	now := a.now()
	keys := slices.DeleteFunc(a.opened.Keys(), func(f firing) bool { return f.fingerprint != one.Fingerprint })
	slices.SortFunc(keys, func(a, b firing) int { return strings.Compare(a.unit, b.unit) })
	for _, key := range keys {
		o, _ := a.opened.Get(key)
		open := o.isOpen(now)
		if o.lostUnit = nil; now.Before(o.until) {
			o.until = now
		}
		a.opened.Add(key, o)
		if !open {
			continue
		}
		closed, err := gates.Close(key.unit, one.Fingerprint)
		if errors.Is(err, ErrNotOpen) {
			continue
		}
		if err != nil {
			return out, err
		}
		out = append(out, alertAnswer{Outcome: alertClosed, Unit: key.unit, TriggerID: closed.TriggerID, Closed: utc(closed.Closed), StillOpen: closed.StillOpen})
	}
	if len(out) == 0 {
		out = []alertAnswer{{Outcome: alertNotOpen}}
	}
	return out, nil
}

// policyOf returns the policy name of the gates that an alert opens.
func (a *Alerts) policyOf(one alert) string {
	name := one.name()
	if !a.names[name] {
		if len(a.names) >= maxNames {
			return otherAlert
		}
		a.names[strings.Clone(name)] = true
	}
	return name
}

// name returns the alert's name as a valid policy name, which is short, printable and
// without commas.
func (one *alert) name() string {
	name := strings.ToValidUTF8(one.Labels["alertname"], "_")
	name = strings.Map(func(r rune) rune {
		if r == ',' || !unicode.IsPrint(r) {
			return '_'
		}
		return r
	}, name)
	return cmp.Or(truncate.Cut(name, maxName), otherAlert)
}

// named returns the unit identifiers in an alert's labels. If the labels name no unit or
// contradict each other, it returns an outcome with its reason.
func (a *Alerts) named(one alert) (n Named, outcome Outcome, why string) {
	n = Named{Since: one.StartsAt, Attributes: map[string]string{}}
	from := map[string]string{}
	which := false
	for _, label := range a.sorted {
		value := one.Labels[label]
		if value == "" {
			continue
		}
		attribute := a.labels[label]
		if was, ok := n.Attributes[attribute]; ok && was != value {
			return Named{}, alertAmbiguous, fmt.Sprintf("its labels %s and %s, which both are %s, differ", from[attribute], label, attribute)
		}
		n.Attributes[attribute], from[attribute] = value, label
		which = which || !isBroad(attribute)
	}
	if !which {
		return Named{}, alertUnknownUnit, "it has no label that names a unit: there are " + strings.Join(a.sorted, ", ")
	}
	take := func(attribute string) string {
		value := n.Attributes[attribute]
		delete(n.Attributes, attribute)
		return value
	}
	n.ContainerID, n.Cgroup, n.PID, n.Host = take(attr.ContainerID), take(cgroupLabel), take(attr.PID), take(attr.HostName)
	if _, id, ok := strings.Cut(n.ContainerID, "://"); ok {
		n.ContainerID = id // kube-state-metrics writes containerd://4f1c…
	}
	return n, "", ""
}

func utc(t time.Time) *time.Time {
	t = t.UTC()
	return &t
}

const (
	alertsPath = "/v1/alerts"

	// webhookVersion is the version of webhook messages that Alertmanager has sent since
	// release 0.6.
	webhookVersion = "4"

	maxAlertsBody  = 1 << 20
	maxAlerts      = 1000 // alerts per request; further alerts are not handled
	maxFingerprint = 64   // bytes; Alertmanager uses 16

	// maxReading is the maximum number of requests whose bodies are in
	// memory at the same time.
	maxReading = 8

	firingStatus = "firing"
	resolved     = "resolved"
)

// alert is one alert of a webhook message.
type alert struct {
	Status      string            `json:"status"`
	Labels      map[string]string `json:"labels"`
	StartsAt    time.Time         `json:"startsAt"`
	Fingerprint string            `json:"fingerprint"`

	fault error // why the alert cannot be handled
}

// alertsAnswer is the answer to a request with alerts.
type alertsAnswer struct {
	Alerts []alertAnswer `json:"alerts"`
	// NotHandled is the number of alerts beyond maxAlerts.
	NotHandled int `json:"not_handled,omitempty"`
}

// answerTo handles a request. Alertmanager retries after a 5xx status, so answerTo
// returns a 5xx status only if a retry may succeed.
func (a *Alerts) answerTo(w http.ResponseWriter, r *http.Request) (any, error) {
	select {
	case a.reading <- struct{}{}:
		defer func() { <-a.reading }()
	default:
		w.Header().Set("Retry-After", "1")
		return nil, &refusal{status: http.StatusServiceUnavailable, why: fmt.Sprintf("%d requests with alerts are being handled", maxReading)}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxAlertsBody))
	if err != nil {
		return nil, unreadable("body", err, ": set max_alerts of the webhook")
	}
	alerts, beyond, err := decodeAlerts(body)
	if err != nil {
		return nil, err
	}
	answers, err := a.handle(r.Context(), alerts)
	return alertsAnswer{Alerts: answers, NotHandled: beyond}, err
}

// decodeAlerts decodes a webhook message. beyond is the number of alerts beyond maxAlerts. An
// alert with a fault does not affect the other alerts.
func decodeAlerts(body []byte) (alerts []alert, beyond int, err error) {
	var message struct {
		Version string            `json:"version"`
		Alerts  []json.RawMessage `json:"alerts"`
	}
	if err := json.Unmarshal(body, &message); err != nil {
		return nil, 0, badRequest("the body is not what the webhook of Alertmanager posts: %v", err)
	}
	if message.Version != webhookVersion {
		return nil, 0, badRequest("version: %q must be %q, of the webhook of Alertmanager", quotable(message.Version), webhookVersion)
	}
	if beyond = len(message.Alerts) - maxAlerts; beyond > 0 {
		message.Alerts = message.Alerts[:maxAlerts]
	}
	for _, raw := range message.Alerts {
		alerts = append(alerts, decodeAlert(raw))
	}
	return alerts, max(0, beyond), nil
}

func decodeAlert(raw json.RawMessage) (one alert) {
	if err := json.Unmarshal(raw, &one); err != nil {
		return alert{fault: fmt.Errorf("decode the alert: %.256s", err.Error())}
	}
	switch f := one.Fingerprint; {
	case f == "":
		one.fault = errors.New("fingerprint: must be set")
	case len(f) > maxFingerprint || strings.ContainsFunc(f, func(r rune) bool { return r <= ' ' || r > '~' }):
		one.Fingerprint, one.fault = "", fmt.Errorf("fingerprint: must be printable and have at most %d bytes", maxFingerprint)
	case one.Status != firingStatus && one.Status != resolved:
		one.fault = fmt.Errorf("status: %q is not one of %s, %s", quotable(one.Status), firingStatus, resolved)
	}
	return one
}
