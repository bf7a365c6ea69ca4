// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command gowaits runs several waiting goroutines. Three goroutines hold a mutex in turn,
// each on its own thread. Another goroutine receives from a connection.
package main

import (
	"io"
	"log"
	"net"
	"runtime"
	"sync"
	"time"
)

func main() {
	var mutex sync.Mutex
	for range 3 {
		go func() {
			runtime.LockOSThread()
			for {
				mutex.Lock()
				time.Sleep(2 * time.Millisecond)
				mutex.Unlock()
			}
		}()
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		c, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			log.Fatal(err)
		}
		for range time.Tick(5 * time.Millisecond) {
			_, _ = c.Write([]byte{1})
		}
	}()
	c, err := listener.Accept()
	if err != nil {
		log.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, c)
}
