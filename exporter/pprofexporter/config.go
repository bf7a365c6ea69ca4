// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprofexporter

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"

	"github.com/hotprofile/hotprofile/internal/bytesize"
	"github.com/hotprofile/hotprofile/internal/configlog"
)

// Config is the configuration of the exporter `pprof`.
type Config struct {
	// Directory is the directory of the files. It is created if it does not exist.
	// The default is the first directory of ${STATE_DIRECTORY}, which systemd sets.
	// Without ${STATE_DIRECTORY}, the default is ./profiles.
	Directory string `mapstructure:"directory"`
	// IdleTimeout is the maximum time that an open file waits for new profiles. After this
	// time, the file is finished. The default is 15s, and the minimum is 100ms.
	IdleTimeout time.Duration `mapstructure:"idle_timeout"`
	// MaxFiles is the maximum number of files to keep. When this number is exceeded, the
	// oldest files are removed. The default is 100, and the minimum is 1.
	MaxFiles int `mapstructure:"max_files"`
	// MaxBytes is the maximum total size of the files that are kept. When this size is
	// exceeded, the oldest files are removed, but the newest file is kept whatever its
	// size. MaxBytes is a number, or a number with a unit such as 256MiB. The default is
	// 256MiB, and the minimum is 1 byte.
	MaxBytes bytesize.Size `mapstructure:"max_bytes"`
}

const minIdleTimeout = 100 * time.Millisecond

// createDefaultConfig returns the default configuration for an environment.
func createDefaultConfig(getenv func(string) string) component.Config {
	directory := "profiles"
	// If a systemd unit has several directories in StateDirectory=, systemd
	// joins their paths like a PATH.
	if dirs := filepath.SplitList(getenv("STATE_DIRECTORY")); len(dirs) > 0 && dirs[0] != "" {
		directory = dirs[0]
	}
	return &Config{
		Directory:   directory,
		IdleTimeout: 15 * time.Second,
		MaxFiles:    100,
		MaxBytes:    256 * bytesize.MiB,
	}
}

// Unmarshal rejects unknown keys, and durations without a unit.
func (c *Config) Unmarshal(conf *confmap.Conf) error {
	return configlog.Unmarshal(conf, c)
}

// Validate returns all faults as one error. Each fault contains the
// key and the allowed values.
func (c *Config) Validate() error {
	var errs []error
	if c.Directory == "" {
		errs = append(errs, errors.New("directory: must not be empty"))
	}
	if c.IdleTimeout < minIdleTimeout {
		errs = append(errs, fmt.Errorf("idle_timeout: %s is too short, at least %s", c.IdleTimeout, minIdleTimeout))
	}
	if c.MaxFiles < 1 {
		errs = append(errs, fmt.Errorf("max_files: %d is too few, at least 1", c.MaxFiles))
	}
	if c.MaxBytes < 1 {
		errs = append(errs, fmt.Errorf("max_bytes: %d is too small, at least 1", int64(c.MaxBytes)))
	}
	return errors.Join(errs...)
}
