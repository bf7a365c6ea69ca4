// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hotunitsreceiver

import (
	"errors"
	"time"

	"go.opentelemetry.io/collector/confmap"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/configlog"
	"github.com/hotprofile/hotprofile/receiver/hotunitsreceiver/internal/metadata"
)

// Config is the configuration of the receiver `hot_units`.
type Config struct {
	// Events lists the names of the events to emit as log records. By
	// default, all events are emitted.
	Events []string `mapstructure:"events"`
	// CollectionInterval is the interval at which readings are emitted. The default
	// is 10s.
	CollectionInterval time.Duration `mapstructure:"collection_interval"`
	// MaxUnits is the maximum number of units whose readings are emitted. Units
	// nearest to a threshold come first. The default is 1000.
	MaxUnits int `mapstructure:"max_units"`

	metadata.MetricsBuilderConfig `mapstructure:",squash"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// Validate checks that values are within these limits.
const (
	minCollectionInterval = time.Second
	maxCollectionInterval = time.Hour
	maxMaxUnits           = 10_000
)

// goneKeys maps each removed configuration key to a description of its replacement.
var goneKeys = map[string]string{
	"export_timeout": "the next component has 5 seconds for one call; an exporter with a sending_queue accepts at once",
}

func createDefaultConfig() *Config {
	return &Config{
		Events:               hotunitsextension.EventNames(),
		CollectionInterval:   10 * time.Second,
		MaxUnits:             1000,
		MetricsBuilderConfig: metadata.NewDefaultMetricsBuilderConfig(),
	}
}

// Unmarshal clears the default list of events. Otherwise, default events would remain at
// the end if the configured list is shorter.
func (cfg *Config) Unmarshal(conf *confmap.Conf) error {
	if err := configlog.Gone(conf, goneKeys); err != nil {
		return err
	}
	if conf.IsSet("events") {
		cfg.Events = nil
	}
	return configlog.Unmarshal(conf, cfg)
}

// Validate returns all errors, each with its key and the allowed values.
func (cfg *Config) Validate() error {
	var none error
	if len(cfg.Events) == 0 {
		none = errors.New("events: names no event; leave it out for all")
	}
	return errors.Join(none,
		configlog.EachOneOf("events", hotunitsextension.EventNames(), cfg.Events),
		configlog.Between("collection_interval", cfg.CollectionInterval, minCollectionInterval, maxCollectionInterval),
		configlog.Between("max_units", cfg.MaxUnits, 1, maxMaxUnits))
}
