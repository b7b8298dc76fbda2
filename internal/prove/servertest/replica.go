//go:build unix

package servertest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ReplicaOf makes the server a replica of the master, even after restarts. It returns
// when the replica is in step.
func (s *RedisServer) ReplicaOf(master *RedisServer) {
	s.owner.Helper()
	s.Must("REPLICAOF", "127.0.0.1", master.port)
	s.Must("CONFIG", "REWRITE")
	s.AwaitReplica()
}

// Promote makes a replica a master with its data, even after restarts.
func (s *RedisServer) Promote() {
	s.owner.Helper()
	s.Must("REPLICAOF", "NO", "ONE")
	s.Must("CONFIG", "REWRITE")
}

// AwaitReplica returns when the server is a replica that has everything its master had at
// the call.
func (s *RedisServer) AwaitReplica() {
	s.owner.Helper()
	if err := await(s.inStep); err != nil {
		s.owner.Fatalf("%s: %v", s.name, err)
	}
}

// inStep returns nil when the server is a replica that has everything its master had a
// moment ago.
func (s *RedisServer) inStep() error {
	link, err := s.info("master_link_status")
	switch {
	case err != nil:
		return err
	case link == "":
		return errors.New("not a replica")
	case link != "up":
		return errors.New("the link to the master is " + link)
	}
	port, err := s.info("master_port")
	if err != nil {
		return err
	}
	sent, err := s.offset("127.0.0.1:"+port, "master_repl_offset")
	if err != nil {
		return err
	}
	got, err := s.offset(s.Addr(), "slave_repl_offset")
	if err == nil && got < sent {
		err = fmt.Errorf("%d bytes behind the master", sent-got)
	}
	return err
}

// offset returns the replication offset of a master or a replica.
func (s *RedisServer) offset(addr, field string) (int64, error) {
	conn, err := s.dial(addr)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	value, err := conn.info(field)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(value, 10, 64)
}

// Follow makes a server a replica of what is at an address, such as a Wire to its master.
func (s *RedisServer) Follow(addr string) {
	s.owner.Helper()
	host, port, _ := strings.Cut(addr, ":")
	s.Must("REPLICAOF", host, port)
}

// Rejoin makes a server that was the master before an empty replica of what is at an address, such as
// a Wire to the new master.
func (s *RedisServer) Rejoin(_ *RedisServer, addr string) {
	s.owner.Helper()
	s.RestartEmpty()
	s.Follow(addr)
}

// Position returns how many bytes a master has sent to replicas, or would have.
func (s *RedisServer) Position() (int64, error) { return s.offset(s.Addr(), "master_repl_offset") }

// Received returns how many bytes of its master a replica has.
func (s *RedisServer) Received() (int64, error) { return s.offset(s.Addr(), "slave_repl_offset") }

// AwaitStandby returns when the server is a replica that has everything its master had at the call.
func (s *RedisServer) AwaitStandby(master *RedisServer) {
	s.owner.Helper()
	wrote, err := master.Position()
	if err == nil {
		err = await(func() error {
			link, err := s.info("master_link_status")
			if err == nil && link != "up" {
				err = errors.New("the link to the master is " + link)
			}
			got := int64(0)
			if err == nil {
				got, err = s.Received()
			}
			if err == nil && got < wrote {
				err = fmt.Errorf("%d bytes behind the master", wrote-got)
			}
			return err
		})
	}
	if err != nil {
		s.owner.Fatalf("%s: %v", s.name, err)
	}
}
