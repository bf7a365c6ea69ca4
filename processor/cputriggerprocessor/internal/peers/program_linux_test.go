// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/test/hosttest"
)

// isProgram is the name of an environment variable. If the variable is set, the test
// binary is a program that executes the commands on its standard input.
const isProgram = "HOTPROFILE_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(isProgram) != "" {
		run()
		return
	}
	os.Exit(m.Run())
}

// run executes commands. Each line is a command, and run answers each
// command with a line.
//
//	listen NETWORK ADDRESS   → the address
//	dial NETWORK ADDRESS N   → ok; say uses the last of the N connections
//	say UP DOWN              → ok, after sending UP bytes and receiving DOWN bytes
//	refused ADDRESS          → ok, if the connection was refused
//	hopeless ADDRESS         → ok, if no answer arrived within 300 ms
//	close                    → ok, after closing all connections
func run() {
	var conns []net.Conn
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var command, network, address string
		var n, up, down int64
		fields := strings.Fields(in.Text())
		command = fields[0]
		answer := "ok"
		check := func(err error) {
			if err != nil {
				answer = "error: " + err.Error()
			}
		}
		switch command {
		case "listen":
			network, address = fields[1], fields[2]
			l, err := net.Listen(network, address)
			if check(err); err == nil {
				answer = l.Addr().String()
				go serve(l)
			}
		case "dial":
			network, address = fields[1], fields[2]
			_, _ = fmt.Sscan(fields[3], &n)
			for range n {
				c, err := net.Dial(network, address)
				if check(err); err != nil {
					break
				}
				conns = append(conns, c)
			}
		case "say":
			_, _ = fmt.Sscan(fields[1]+" "+fields[2], &up, &down)
			check(say(conns[len(conns)-1], up, down))
		case "refused":
			if _, err := net.Dial("tcp", fields[1]); err == nil {
				answer = "error: it was not refused"
			}
		case "hopeless":
			if _, err := net.DialTimeout("tcp", fields[1], 300*time.Millisecond); err == nil {
				answer = "error: somebody answered"
			}
		case "close":
			for _, c := range conns {
				_ = c.Close()
			}
			conns = nil
		}
		fmt.Println(answer)
	}
}

// header is the size of the header that announces the sizes of a request
// and its response.
const header = 16

func say(c net.Conn, up, down int64) error {
	b := make([]byte, header)
	binary.BigEndian.PutUint64(b, uint64(up-header))
	binary.BigEndian.PutUint64(b[8:], uint64(down))
	if _, err := c.Write(b); err != nil {
		return err
	}
	if _, err := io.CopyN(c, zeros{}, up-header); err != nil {
		return err
	}
	_, err := io.CopyN(io.Discard, c, down)
	return err
}

func serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			b := make([]byte, header)
			for {
				if _, err := io.ReadFull(c, b); err != nil {
					return
				}
				if _, err := io.CopyN(io.Discard, c, int64(binary.BigEndian.Uint64(b))); err != nil {
					return
				}
				if _, err := io.CopyN(c, zeros{}, int64(binary.BigEndian.Uint64(b[8:]))); err != nil {
					return
				}
			}
		}()
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// program is a real program in a cgroup and a network namespace.
type program struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

// start starts a program. If in is nil, the program runs in the test's network namespace.
// If of is nil, the program runs in the test's cgroup.
func start(t testing.TB, of *hosttest.Cgroup, in *hosttest.Network) *program {
	t.Helper()
	args := []string{os.Args[0]}
	if in != nil {
		args = append([]string{"ip", "netns", "exec", in.Name}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	if of != nil {
		cmd = of.Command(args[0], args[1:]...)
	}
	cmd.Env = append(os.Environ(), isProgram+"=1")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p := &program{t, cmd, stdin, bufio.NewScanner(stdout)}
	t.Cleanup(p.stop)
	p.do("close") // the answer shows that the program is in its namespace
	return p
}

func (p *program) stop() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

// do executes a command and returns the answer.
func (p *program) do(format string, args ...any) string {
	p.t.Helper()
	_, err := fmt.Fprintf(p.in, format+"\n", args...)
	require.NoError(p.t, err)
	require.True(p.t, p.out.Scan(), "the program ended")
	require.NotContains(p.t, p.out.Text(), "error")
	return p.out.Text()
}

// listen makes the program listen on a free port of an address.
func (p *program) listen(at netip.Addr) netip.AddrPort {
	p.t.Helper()
	return netip.MustParseAddrPort(p.do("listen tcp %v", netip.AddrPortFrom(at, 0)))
}
