// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hotunitsextension

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configretry"
	"go.opentelemetry.io/collector/confmap"

	"github.com/hotprofile/hotprofile/internal/configlog"
	"github.com/hotprofile/hotprofile/internal/urls"
)

// Config is the configuration of the extension `hot_units`.
type Config struct {
	// Webhooks lists the URLs to which events are posted. The default is an empty list.
	Webhooks []WebhookConfig `mapstructure:"webhooks"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// WebhookConfig configures a URL to which events are posted.
type WebhookConfig struct {
	// ClientConfig contains all keys of confighttp's client. Timeout is the deadline
	// of one request. The default of Timeout is 5s.
	ClientConfig confighttp.ClientConfig `mapstructure:",squash"`
	// Events lists the names of the events to post. The defaults are
	// hotprofile.gate.opened and hotprofile.profile.written.
	Events []string `mapstructure:"events"`
	// Template is json, slack, teams, or the path of a file with a Go template. The
	// file is read at the start. The default is json.
	Template string `mapstructure:"template"`
	// GroupWait is the time to wait for further events after the first event of a request.
	// Events that arrive in this time are added to the request. The default is 5s.
	GroupWait time.Duration `mapstructure:"group_wait"`
	// MaxEvents is the maximum number of events in one request. If there are further
	// events, the request contains only their number. The default is 20.
	MaxEvents int `mapstructure:"max_events"`
	// Retry configures the retries of a failed request. By default, the first retry is
	// after 1s, later retries are at most 10s apart, and retries stop after 1m.
	Retry configretry.BackOffConfig `mapstructure:"retry_on_failure"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// These constants are the limits that Validate checks.
const (
	maxWebhooks    = 20
	maxTimeout     = time.Minute
	maxGroupWait   = 5 * time.Minute
	maxMaxEvents   = 30 // Slack shows 50 blocks, Teams accepts 28 KB
	maxElapsedTime = 10 * time.Minute
)

func defaultWebhook() WebhookConfig {
	client := confighttp.NewDefaultClientConfig()
	client.Timeout = 5 * time.Second
	retry := configretry.NewDefaultBackOffConfig()
	retry.InitialInterval, retry.MaxInterval, retry.MaxElapsedTime = time.Second, 10*time.Second, time.Minute
	return WebhookConfig{
		ClientConfig: client,
		Events:       []string{GateOpened, ProfileWritten},
		Template:     templateJSON,
		GroupWait:    5 * time.Second,
		MaxEvents:    20,
		Retry:        retry,
	}
}

// Unmarshal sets missing keys to their defaults. It rejects unknown keys,
// and durations without a unit.
func (w *WebhookConfig) Unmarshal(conf *confmap.Conf) error {
	*w = defaultWebhook()
	if conf.IsSet("events") {
		w.Events = nil // otherwise the items would replace only some of the default items
	}
	return configlog.Unmarshal(conf, w)
}

// Validate reports every fault, each with its key and the allowed values.
func (c *Config) Validate() error {
	if n := len(c.Webhooks); n > maxWebhooks {
		return fmt.Errorf("webhooks: %d are too many, at most %d", n, maxWebhooks)
	}
	return nil
}

// Validate reports every fault, each with its key and the allowed values. The errors do not
// contain the URL, because the URL may be a secret.
func (w *WebhookConfig) Validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if _, err := urls.Parse(w.ClientConfig.Endpoint, "https://hooks.example.com/services/…"); err != nil {
		fault("endpoint: %w", err)
	}
	if len(w.Events) == 0 {
		fault("events: names no event; leave it out for %s and %s", GateOpened, ProfileWritten)
	}
	errs = append(errs, configlog.EachOneOf("events", EventNames(), w.Events))
	if w.Template == "" {
		fault("template: must not be empty: json, slack, teams, or the path of a file")
	}
	if t := w.ClientConfig.Timeout; t <= 0 || t > maxTimeout {
		fault("timeout: %v is not above 0 and up to %v", t, maxTimeout)
	}
	errs = append(errs, configlog.Between("group_wait", w.GroupWait, 0, maxGroupWait))
	errs = append(errs, configlog.Between("max_events", w.MaxEvents, 1, maxMaxEvents))
	if r := w.Retry; r.Enabled && (r.MaxElapsedTime <= 0 || r.MaxElapsedTime > maxElapsedTime) {
		fault("retry_on_failure.max_elapsed_time: %v is not above 0 and up to %v", r.MaxElapsedTime, maxElapsedTime)
	}
	return errors.Join(errs...)
}

// name returns the webhook's name for logs and metrics. The name contains only the host of
// the URL, because the rest of the URL may be a secret.
func (w *WebhookConfig) name(index int) string {
	host := ""
	if u, err := url.Parse(w.ClientConfig.Endpoint); err == nil {
		host = u.Host
	}
	return fmt.Sprintf("webhooks[%d] %s", index, host)
}

// contentType returns the Content-Type in the configured headers, or an empty string if
// there is none.
func (w *WebhookConfig) contentType() (set string) {
	for name, value := range w.ClientConfig.Headers.Iter {
		if http.CanonicalHeaderKey(name) == "Content-Type" {
			set = string(value)
		}
	}
	return set
}
