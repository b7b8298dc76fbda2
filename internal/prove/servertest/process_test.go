//go:build linux

package servertest

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// killedVar names the variable that makes this test binary the process that is killed.
const killedVar = "DIBS_SERVERTEST_KILLED"

func TestMain(m *testing.M) {
	if os.Getenv(killedVar) != "" {
		beVictim()
	}
	os.Exit(m.Run())
}

// beVictim starts servers, says what they are, and waits for its end.
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
	// One that works and one that is paused, both with a family.
	third := Postgres(scope, &PostgresOptions{NoSync: true})
	fourth := Postgres(scope, &PostgresOptions{NoSync: true})
	for _, s := range []*PostgresServer{third, fourth} {
		go s.Do("SELECT pg_sleep(600)")
		err := await(func() error {
			rows, err := s.Do("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'")
			if err == nil && rows[0][0] != "1" {
				err = errors.New("no child sleeps")
			}
			return err
		})
		if err != nil {
			scope.Fatalf("%v", err)
		}
	}
	fourth.Pause()
	fifth := MariaDB(scope, &MariaDBOptions{NoSync: true})
	for _, s := range []*server{&first.server, &second.server, &third.server, &fourth.server, &fifth.server} {
		children, err := descendants(s.proc.pid)
		if err != nil {
			scope.Fatalf("%v", err)
		}
		fmt.Println(s.folder.path, s.proc.pid, strings.Trim(fmt.Sprint(children), "[]"))
	}
	select {}
}

func TestServersDieWithTheirProcess(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), killedVar+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	testkit.Must(t, err)
	testkit.Must(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill() })
	type left struct {
		folder string
		pids   []int
	}
	var servers []left
	processes := 0
	for lines := bufio.NewScanner(out); len(servers) < 5; {
		if !lines.Scan() {
			t.Fatalf("the process ended: %v", cmd.Wait())
		}
		words := strings.Fields(lines.Text())
		s := left{folder: words[0]}
		for _, word := range words[1:] {
			pid, err := strconv.Atoi(word)
			testkit.Must(t, err)
			s.pids = append(s.pids, pid)
		}
		if ended(s.pids[0]) {
			t.Errorf("process %d ended before its parent", s.pids[0])
		}
		processes += len(s.pids)
		servers = append(servers, s)
	}
	if processes < 5+2*4 {
		t.Errorf("%d processes; want families among them", processes)
	}
	testkit.Must(t, cmd.Process.Kill())
	_ = cmd.Wait() // "signal: killed"
	for _, s := range servers {
		for _, pid := range s.pids {
			testkit.Check(t, awaitEnd(pid))
		}
		if err := await(func() error { // others may sweep the same one, and have it locked
			sweep(folderRoot(nil))
			sweep("/tmp")
			if _, err := os.Stat(s.folder); !os.IsNotExist(err) {
				return fmt.Errorf("%s: %w", s.folder, err)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		if line := segmentLine(s.pids[0]); line != "" {
			t.Errorf("left in the kernel: %s", line)
		}
	}
}
