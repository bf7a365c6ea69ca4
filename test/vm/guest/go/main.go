// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command go replaces the go command of an emulated guest, in which a compiler would
// take minutes. It asks the host to run the same command, and copies the output and
// the built file. The host has the same files at the same paths. On the host,
// serve_go of vm.sh runs the commands.
package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	status, err := ask(filepath.Join(os.Getenv("VM_RUN"), "go"), os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "go, by the host:", err)
		os.Exit(1)
	}
	os.Exit(status)
}

// forwarded lists the environment variables that a test may set for a single command.
var forwarded = []string{"GO111MODULE", "GOTOOLCHAIN", "GOOS", "GOARCH", "GOARM64", "CGO_ENABLED", "GOEXPERIMENT", "GOFLAGS", "GOPROXY"}

func ask(folder string, args []string) (status int, err error) {
	wd, err := os.Getwd()
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp(folder, "")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	request := []string{wd}
	for _, name := range forwarded {
		if value, set := os.LookupEnv(name); set {
			request = append(request, name+"="+value)
		}
	}
	// The file is built in the folder that the guest shares with the host. It is
	// copied to its place at the end.
	made, wanted := filepath.Join(dir, "made"), ""
	if i := slices.Index(args, "-o"); i >= 0 && i+1 < len(args) {
		wanted, args[i+1] = args[i+1], made
	}
	request = append(append(request, "go"), args...)
	if err := os.WriteFile(filepath.Join(dir, "asking"), []byte(strings.Join(request, "\x00")+"\x00"), 0o644); err != nil {
		return 0, err
	}
	if err := os.Rename(filepath.Join(dir, "asking"), filepath.Join(dir, "asked")); err != nil {
		return 0, err
	}
	text, err := os.ReadFile(filepath.Join(dir, "status"))
	for errors.Is(err, fs.ErrNotExist) {
		time.Sleep(100 * time.Millisecond)
		text, err = os.ReadFile(filepath.Join(dir, "status"))
	}
	if err != nil {
		return 0, err
	}
	if status, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
		return 0, err
	}
	err = errors.Join(
		appendTo(os.Stdout, filepath.Join(dir, "stdout")),
		appendTo(os.Stderr, filepath.Join(dir, "stderr")))
	if wanted == "" || status != 0 {
		return status, err
	}
	out, outErr := os.OpenFile(wanted, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if outErr != nil {
		return status, errors.Join(err, outErr)
	}
	return status, errors.Join(err, appendTo(out, made), out.Close())
}

func appendTo(w io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}
