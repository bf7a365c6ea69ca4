// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hosttest

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Tool returns the path of the first of these programs that is installed and works. If
// none works, Tool skips the test or fails it, like [SkipUnprivileged].
func Tool(t testing.TB, names ...string) string {
	t.Helper()
	path, err := tool(names...)
	if err != nil {
		SkipUnprivileged(t, "%v", err)
	}
	return path
}

func tool(names ...string) (string, error) {
	var failed []string
	for _, name := range names {
		candidates := []string{name}
		if !strings.Contains(name, "/") { // the first match in PATH may be a rustup or pyenv shim without a toolchain
			candidates = append(candidates, "/usr/bin/"+name)
		}
		for _, c := range candidates {
			path, err := exec.LookPath(c)
			if err != nil {
				failed = append(failed, err.Error())
				continue
			}
			cmd := exec.Command(path, versionArgument(filepath.Base(name)))
			out, err := cmd.CombinedOutput()
			if err == nil {
				return path, nil
			}
			failed = append(failed, fmt.Sprintf("%s does not run: %v: %s", cmd, err, strings.TrimSpace(string(out))))
		}
	}
	return "", fmt.Errorf("needs %s: %s", strings.Join(names, " or "), strings.Join(failed, "; "))
}

// versionArgument returns an argument that makes the program print
// a text and exit with status 0.
func versionArgument(name string) string {
	switch {
	case strings.HasPrefix(name, "go"):
		return "version"
	case name == "jcmd" || name == "setcap":
		return "-h"
	case name == "top":
		return "-v"
	}
	return "--version"
}
