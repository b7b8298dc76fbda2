//go:build nightly && linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestTenThousandLongPolls: as many waiters of one key as dibs serve lends by default, each with a
// call and a connection of its own, are granted the key once each, in the order of their places. The
// memory of the server is logged; the goal while they wait is 380 MiB.
func TestTenThousandLongPolls(t *testing.T) {
	const waiters, inOneCall = 10_000, 1_000
	at := servertest.Addr(t)
	p := start(t, "serve", "--store", "memory:", "--listen", at)
	testkit.Eventually(t, "it serves", func() bool {
		resp, err := http.Get("http://" + at + "/healthz")
		if err == nil {
			resp.Body.Close()
		}
		return err == nil
	})
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: waiters}}
	type answer struct {
		State, Fence string
		Queued       bool
	}
	call := func(verb string, body string) (answers []answer, err error) {
		resp, err := client.Post("http://"+at+"/v1/"+verb, "application/json", strings.NewReader(body))
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("%s: %s: %s %w", verb, resp.Status, text, err)
		}
		var all struct{ Answers []answer }
		err = json.Unmarshal(text, &all)
		return all.Answers, err
	}
	claim := func(i int) string {
		return fmt.Sprintf(`{"key":"k","token":"%032x","mode":"queue","ttl_ms":3600000,"place_ttl_ms":3600000}`, i+1)
	}
	settle := func(i int) error {
		_, err := call("settle", fmt.Sprintf(`{"settlements":[{"key":"k","token":"%032x"}]}`, i+1))
		return err
	}
	// The holder, and then the places, in order.
	_, err := call("claim", `{"claims":[`+claim(waiters)+`]}`)
	testkit.Must(t, err)
	for from := 0; from < waiters; from += inOneCall {
		var claims []string
		for i := range inOneCall {
			claims = append(claims, claim(from+i))
		}
		answers, err := call("claim", `{"claims":[`+strings.Join(claims, ",")+`]}`)
		testkit.Must(t, err)
		for i, a := range answers {
			if a.State != "held" || !a.Queued {
				t.Fatalf("waiter %d is answered %+v", from+i, a)
			}
		}
	}
	var mu sync.Mutex
	var granted []int
	var fences []uint64
	var all sync.WaitGroup
	var once sync.Once
	for i := range waiters {
		all.Go(func() {
			for {
				answers, err := call("claim", `{"claims":[`+claim(i)+`],"wait_ms":60000}`)
				if err != nil || len(answers) != 1 {
					once.Do(func() { t.Errorf("waiter %d: %v", i, err) })
					return
				}
				if answers[0].State == "held" {
					continue
				}
				fence, err := strconv.ParseUint(answers[0].Fence, 10, 64)
				if answers[0].State != "granted" || err != nil {
					once.Do(func() { t.Errorf("waiter %d is answered %+v", i, answers[0]) })
					return
				}
				mu.Lock()
				granted, fences = append(granted, i), append(fences, fence)
				mu.Unlock()
				if err := settle(i); err != nil {
					once.Do(func() { t.Errorf("waiter %d: %v", i, err) })
				}
				return
			}
		})
	}
	testkit.Eventually(t, "all of them wait", func() bool {
		resp, err := http.Get("http://" + at + "/metrics")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		return err == nil && bytes.Contains(text, []byte("\ndibs_serve_waiting 10000\n"))
	})
	t.Logf("while they wait the server has %d MiB", memoryOf(t, p.Process.Pid, "VmRSS")>>20)
	testkit.Must(t, settle(waiters))
	all.Wait()
	if len(granted) != waiters {
		t.Errorf("%d waiters were granted the key", len(granted))
	}
	for i := range granted {
		if granted[i] != i || i > 0 && fences[i] <= fences[i-1] {
			t.Fatalf("grant %d went to waiter %d, with the fence %d after %d", i, granted[i], fences[i], fences[max(i-1, 0)])
		}
	}
	t.Logf("the server had %d MiB at most", memoryOf(t, p.Process.Pid, "VmHWM")>>20)
}

// memoryOf returns the memory of a process in bytes: what it has (VmRSS), or had at most (VmHWM).
func memoryOf(t *testing.T, pid int, which string) int64 {
	t.Helper()
	text := testkit.ReadFile(t, fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := strings.Cut(string(text), which+":")
	kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	testkit.Must(t, err)
	return kib << 10
}

// TestHostileBodiesTakeBoundedMemory: many connections send the longest bodies that there are, all
// at once, and the server's memory is bounded by GOMEMLIMIT.
func TestHostileBodiesTakeBoundedMemory(t *testing.T) {
	at := servertest.Addr(t)
	// Not this test's binary: the race detector takes several times the memory.
	program := filepath.Join(t.TempDir(), "dibs")
	out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput()
	if err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	p := &process{Cmd: exec.Command(program, "serve", "--store", "memory:", "--listen", at), done: make(chan struct{})}
	p.begin(t)
	testkit.Eventually(t, "it listens", func() bool {
		conn, err := net.Dial("tcp", at)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	bodies := []string{
		strings.Repeat(" ", 16<<20),
		`{"claims":[{"key":` + strings.Repeat("[", 15<<20),
		`{"claims":[{"key":"` + strings.Repeat("k", 15<<20) + `","mode":"look"}]}`,
		`{"claims":[` + strings.Repeat(`{"key":"k","mode":"look"},`, 1<<19) + `{}]}`,
		`{"settlements":[{"key":"k","token":"` + strings.Repeat("1", 32) + `","outcome":"keep","data":"` + strings.Repeat("A", 15<<20) + `"}]}`,
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	statuses := map[int]int{}
	for i := range 100 {
		all.Go(func() {
			resp, err := http.Post("http://"+at+"/v1/"+[]string{"claim", "settle"}[i%len(bodies)/4], "application/json", strings.NewReader(bodies[i%len(bodies)]))
			if err != nil {
				return // it was refused while it was still sent
			}
			resp.Body.Close()
			mu.Lock()
			statuses[resp.StatusCode]++
			mu.Unlock()
		})
	}
	all.Wait()
	for status := range statuses {
		if status != 200 && status != 400 && status != 413 && status != 429 {
			t.Errorf("a body is answered %d", status)
		}
	}
	const most = 512 << 20 // twice the bound of bodies, because the heap may be twice what is in use
	if peak := memoryOf(t, p.Process.Pid, "VmHWM"); peak >= most {
		t.Errorf("the server had %d MiB", peak>>20)
	} else {
		t.Logf("the server had %d MiB; %v", peak>>20, statuses)
	}
}
