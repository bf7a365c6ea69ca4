// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package consoleexporter

import (
	"errors"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/exporter/exporterhelper"

	"github.com/hotprofile/hotprofile/internal/bytesize"
	"github.com/hotprofile/hotprofile/internal/configlog"
)

// Config is the configuration of the `console` exporter.
type Config struct {
	// Extension is the ID of the `console` extension. The default is console.
	Extension component.ID `mapstructure:"extension"`
	// Timeout is the deadline of one write to the store, from 100ms to 1m. The
	// default is 5s.
	Timeout time.Duration `mapstructure:"timeout"`
	// Queue holds requests until the store accepts them. Each signal has its own queue.
	// If a queue is full, it rejects further requests. The default size is 16 MiB.
	Queue configoptional.Optional[exporterhelper.QueueBatchConfig] `mapstructure:"sending_queue"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// Validate checks that values are within these limits.
const (
	minTimeout = 100 * time.Millisecond
	maxTimeout = time.Minute
)

const defaultQueueSize = 16 * bytesize.MiB

func createDefaultConfig() component.Config {
	queue := exporterhelper.NewDefaultQueueConfig()
	queue.Sizer, queue.QueueSize = exporterhelper.RequestSizerTypeBytes, int64(defaultQueueSize)
	queue.NumConsumers = 1 // the store has one writer
	return &Config{
		Extension: component.MustNewID("console"),
		Timeout:   5 * time.Second,
		Queue:     configoptional.Some(queue),
	}
}

// Unmarshal rejects unknown keys, and durations without a unit.
func (c *Config) Unmarshal(conf *confmap.Conf) error {
	return configlog.Unmarshal(conf, c)
}

// Validate returns every fault, each with its key and the allowed values.
func (c *Config) Validate() error {
	err := configlog.Between("timeout", c.Timeout, minTimeout, maxTimeout)
	if c.Extension == (component.ID{}) {
		err = errors.Join(errors.New("extension: must be the id of the extension console"), err)
	}
	return err
}
