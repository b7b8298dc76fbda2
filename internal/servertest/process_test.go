//go:build linux

package servertest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// victim names the variable that makes this test binary one that is killed.
const victim = "DIBS_SERVERTEST_VICTIM"

func TestMain(m *testing.M) {
	if os.Getenv(victim) != "" {
		beVictim()
	}
	os.Exit(m.Run())
}

// beVictim starts two servers, says what they are, and waits for its end.
func beVictim() {
	scope := NewScope()
	started := make(chan *RedisServer)
	go func() {
		// A thread that ends before the process does, and must not take the
		// server with it.
		runtime.LockOSThread()
		started <- Redis(scope, nil)
	}()
	first := <-started
	second := Redis(scope, nil)
	second.Pause()
	for range 100 {
		first.Must("PING")
	}
	for _, s := range []*RedisServer{first, second} {
		fmt.Println(s.proc.pid, s.folder.path)
	}
	select {}
}

func TestServersDieWithTheirProcess(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), victim+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	type left struct{ pid, folder string }
	var servers []left
	for lines := bufio.NewScanner(out); len(servers) < 2; {
		if !lines.Scan() {
			t.Fatalf("the victim ended: %v", cmd.Wait())
		}
		pid, folder, _ := strings.Cut(lines.Text(), " ")
		servers = append(servers, left{pid, folder})
	}
	for _, s := range servers {
		if !alive(s.pid) {
			t.Errorf("process %s ended before its parent", s.pid)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // "signal: killed"
	for _, s := range servers {
		err := await(func() error {
			if alive(s.pid) {
				return fmt.Errorf("process %s lives", s.pid)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		sweep(folderRoot(nil))
		if _, err := os.Stat(s.folder); !os.IsNotExist(err) {
			t.Errorf("%s: %v", s.folder, err)
		}
	}
}

// alive reports whether a process runs; nobody may have waited for its end yet.
func alive(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func TestStopped(t *testing.T) {
	t.Parallel()
	s := Redis(t, nil)
	if stopped(s.proc.pid) {
		t.Error("stopped from the start")
	}
	s.Pause()
	if stat, err := os.ReadFile("/proc/" + strconv.Itoa(s.proc.pid) + "/stat"); err != nil || !strings.Contains(string(stat), ") T ") {
		t.Errorf("paused, it is %s, %v", stat, err)
	}
	s.Continue()
	s.Must("PING")
	if stopped(s.proc.pid) {
		t.Error("stopped after it went on")
	}
}
