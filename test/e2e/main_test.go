// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package e2e tests the built distributions with real processes, real cgroups, real
// containers and a real OTLP peer. `make e2e` builds the distributions and sets
// HOTPROFILE_COLLECTOR and HOTPROFILE_COLLECTOR_KUBERNETES to their paths.
package e2e

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// collectorBinary and kubernetesBinary are the paths of the distributions for nodes and
// for Kubernetes. loadBinary is the path of the load program. TestMain sets these paths
// before the tests begin.
var collectorBinary, kubernetesBinary, loadBinary string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	collectorBinary = os.Getenv("HOTPROFILE_COLLECTOR")
	if collectorBinary == "" {
		fmt.Println("HOTPROFILE_COLLECTOR must be the path of the distribution; run `make e2e`")
		return 1
	}
	kubernetesBinary = cmp.Or(os.Getenv("HOTPROFILE_COLLECTOR_KUBERNETES"), collectorBinary)
	dir, err := os.MkdirTemp("", "hotprofile-e2e-")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(dir)
	loadBinary = filepath.Join(dir, "load")
	build := exec.Command("go", "build", "-o", loadBinary, "../load")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Printf("build the load: %v\n%s", err, out)
		return 1
	}
	// Test processes of other users must be able to read the directory.
	if err := os.Chmod(dir, 0o755); err != nil {
		fmt.Println(err)
		return 1
	}
	return m.Run()
}
