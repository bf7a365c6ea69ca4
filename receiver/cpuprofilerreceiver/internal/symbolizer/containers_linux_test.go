// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package symbolizer

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// imageOf returns a directory that represents an image with a program.
func imageOf(t *testing.T, program string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	content, err := os.ReadFile(program)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "program"), content, 0o755))
	return dir
}

// container creates a container from an image, as container engines do, and returns its
// root. The root is an overlayfs mount with its own upper layer.
func container(t *testing.T, image string) (root string) {
	t.Helper()
	dir := t.TempDir()
	for _, sub := range []string{"upper", "work", "root"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, sub), 0o755))
	}
	root = filepath.Join(dir, "root")
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%[2]s/work", image, dir)
	if err := unix.Mount("overlay", root, "overlay", 0, options); err != nil {
		hosttest.SkipUnprivileged(t, "cannot mount overlayfs: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(root, unix.MNT_DETACH)) })
	return root
}

// install copies a file into a container.
func install(t *testing.T, root, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, to)), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(root, to), content, 0o755))
}

// runIn runs /program in a container and returns the mapping of the program.
func runIn(t *testing.T, root string) *samples.Mapping {
	t.Helper()
	cmd := exec.Command("/program")
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Cloneflags: syscall.CLONE_NEWNS}
	p := startCommand(t, cmd)
	require.Equal(t, "ready", p.line(t))
	return mappingOf(t, mappings(t, p.pid), "/program")
}

// TestContainersDoNotNameEachOthersFunctions checks that a container influences only the
// names of its own functions, even if its files make false claims.
func TestContainersDoNotNameEachOthersFunctions(t *testing.T) {
	p := stripped(t, "-Wl,--build-id=sha1", "-static-pie")
	id := buildIDOf(t, p.whole)
	debugFile := "/usr/lib/debug/.build-id/" + id[:2] + "/" + id[2:] + ".debug"
	tool(t, "objcopy", "--redefine-sym", "hidden=a_lie", p.debug, p.debug+".lie")
	// The file has the build ID and the size of the stripped
	// program, but other function names.
	claim := p.whole + ".claim"
	tool(t, "objcopy", "--redefine-sym", "hidden=claim", p.whole, claim)
	image, claims := imageOf(t, p.stripped), imageOf(t, claim)
	size := func(path string) int64 {
		st, err := os.Stat(path)
		require.NoError(t, err)
		return st.Size()
	}
	whole := imageOf(t, p.whole)
	larger := max(size(filepath.Join(whole, "program")), size(filepath.Join(claims, "program")))
	require.NoError(t, os.Truncate(filepath.Join(whole, "program"), larger))
	require.NoError(t, os.Truncate(filepath.Join(claims, "program"), larger))
	require.Equal(t, id, buildIDOf(t, filepath.Join(claims, "program")))

	liar, honest := container(t, image), container(t, image)
	install(t, liar, p.debug+".lie", debugFile)
	install(t, honest, p.debug, debugFile)
	changed := container(t, image)
	install(t, changed, filepath.Join(claims, "program"), "/program") // written to the container's upper layer

	s := newSymbolizer(t, Config{})
	for _, c := range []struct{ name, root, hidden string }{
		{"the liar", liar, "a_lie"},
		{"one without debug files", container(t, image), ""},
		{"one with the right debug file", honest, "hidden"},
		{"one that claims the build id", container(t, claims), "claim"},
		{"one whose build id was claimed", container(t, whole), "hidden"},
		{"one that changed the program", changed, "claim"},
		{"one that did not", container(t, image), ""},
	} {
		var want []samples.Line
		if c.hidden != "" {
			want = []samples.Line{{Function: c.hidden}}
		}
		m := runIn(t, c.root)
		l := leaf(m, addressOf(t, p.whole, m, "hidden")+1)
		s.Resolve(0, l)
		require.True(t, l.Resolved)
		require.Equal(t, want, l.Lines, c.name)
	}
}

// TestContainersOfAnImageShareItsFiles checks that containers of the same image share the
// cached data of the image's files.
func TestContainersOfAnImageShareItsFiles(t *testing.T) {
	image := imageOf(t, build(t, nil, "gcc", "-O1", "-static-pie", "-o", "OUT", "testdata/native.c"))
	s := newSymbolizer(t, Config{})
	var one Counters
	for i := range 5 {
		m := runIn(t, container(t, image))
		l := leaf(m, addressOf(t, filepath.Join(image, "program"), m, "exported"))
		s.Resolve(0, l)
		require.Equal(t, []samples.Line{{Function: "exported"}}, l.Lines)
		if i == 0 {
			one = s.Counters()
		}
	}
	if _, _, err := unix.NameToHandleAt(unix.AT_FDCWD, container(t, image)+"/program", 0x200); err != nil {
		t.Skipf("the kernel does not identify files in layers: %v", err)
	}
	require.Equal(t, 1, s.Counters().Objects)
	require.Equal(t, one.Bytes, s.Counters().Bytes)
}
