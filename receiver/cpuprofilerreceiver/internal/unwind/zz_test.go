package unwind

import (
	"fmt"
	"os"
	"testing"
	"time"
)

func TestZZ(t *testing.T) {
	for _, p := range []string{"/work/main/bin/otelcol-hotprofile"} {
		f, err := os.Open(p)
		if err != nil {
			fmt.Println(err)
			continue
		}
		st, _ := f.Stat()
		b := time.Now()
		tab, err := NewTable(f, st.Size(), 64<<20)
		if tab == nil {
			fmt.Println(p, err)
			continue
		}
		kinds := map[string]int{}
		bad := 0
		for i, r := range tab.rows {
			end := uint32(0)
			if i+1 < len(tab.pcs) {
				end = tab.pcs[i+1]
			} else {
				end = tab.pcs[i]
			}
			if tab.rules[r].cfa == cfaBad {
				bad += int(end - tab.pcs[i])
			}
			kinds[fmt.Sprint(tab.rules[r].cfa)]++
		}
		fmt.Printf("%s %d MB: %v err=%v rows=%d rules=%d bytes=%d fp=%v %+v bad=%d kinds=%v shift=%d\n", p, st.Size()>>20, time.Since(b), err, tab.Rows(), len(tab.rules), tab.Bytes(), tab.FramePointers(), tab.code, bad, kinds, tab.shift)
	}
}
