// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package manual

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

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
