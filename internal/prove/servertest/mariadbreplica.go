//go:build unix

package servertest

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Follow makes a MariaDB a replica of what is at an address, such as a Wire to its primary. It
// takes from there all that it does not have.
func (s *MariaDBServer) Follow(addr string) {
	s.owner.Helper()
	s.do("leading", func() error { return s.follow(addr) })
}

func (s *MariaDBServer) follow(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	// What a replica applies must not wait for replicas of its own.
	if err := s.configure("rpl_semi_sync_master_enabled = OFF"); err != nil {
		return err
	}
	_, err = s.Do("STOP SLAVE; SET GLOBAL read_only = 1; SET GLOBAL rpl_semi_sync_master_enabled = 0;" +
		"CHANGE MASTER TO MASTER_HOST = " + quoteMariaDB(host) + ", MASTER_PORT = " + port + ", MASTER_USER = 'root', MASTER_PASSWORD = " +
		quoteMariaDB(s.options.Password) + ", MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1; START SLAVE")
	return err
}

// configure writes the configuration for the next start, with more lines. A server that was wiped has
// a new number, because a replica passes over what has its own.
func (s *MariaDBServer) configure(more ...string) error {
	number, err := strconv.Atoi(s.port.String())
	if err != nil {
		return err
	}
	more = append(more, fmt.Sprintf("server-id = %d", number+s.wiped<<16))
	return s.as.write(s.folder.join("my.cnf"), s.options.config(s.folder, s.port)+strings.Join(more, "\n")+"\n")
}

// Received returns the number of the last transaction that a replica has received. It stops
// receiving.
func (s *MariaDBServer) Received() (int64, error) {
	pos, err := s.received()
	if err != nil {
		return 0, err
	}
	return number(pos)
}

func (s *MariaDBServer) received() (string, error) {
	if _, err := s.Do("STOP SLAVE IO_THREAD"); err != nil {
		return "", err
	}
	return s.status("Gtid_IO_Pos")
}

// status returns a field of SHOW SLAVE STATUS.
func (s *MariaDBServer) status(field string) (string, error) {
	out, err := s.client.run("--execute=SHOW SLAVE STATUS\\G", "--column-names")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(out) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), field+":"); ok {
			return strings.TrimSpace(value), nil
		}
	}
	return "", errors.New("it is no replica")
}

// Promote makes a replica a primary with all that it has received.
func (s *MariaDBServer) Promote() {
	s.owner.Helper()
	s.do("promoting", func() error {
		pos, err := s.received()
		if err != nil {
			return err
		}
		rows, err := s.Do(fmt.Sprintf("SELECT MASTER_GTID_WAIT(%s, %d)", quoteMariaDB(pos), int(waitLimit.Seconds())))
		if err == nil && rows[0][0] != "0" {
			err = fmt.Errorf("it does not apply what it has received, up to %s", pos)
		}
		if err == nil {
			err = s.configure()
		}
		if err == nil {
			_, err = s.Do(fmt.Sprintf("STOP SLAVE; RESET SLAVE ALL; SET GLOBAL rpl_semi_sync_master_enabled = %t; SET GLOBAL read_only = 0", s.options.SemiSync))
		}
		return err
	})
}

// Rejoin makes a server that was the primary before a replica of the new one. It begins without its
// data, because what only it had cannot be taken back, and takes everything from addr, such as a
// Wire to the primary. A server that runs is killed first.
func (s *MariaDBServer) Rejoin(_ *MariaDBServer, addr string) {
	s.owner.Helper()
	s.do("rejoining", func() error {
		if err := s.proc.kill(); err != nil {
			return err
		}
		s.down = true
		if err := s.wipe(); err != nil {
			return err
		}
		s.wiped++
		if err := s.configure(); err != nil {
			return err
		}
		if err := s.run(); err != nil {
			return err
		}
		return s.follow(addr)
	})
}

// Position returns the number of the last transaction in a primary's log.
func (s *MariaDBServer) Position() (int64, error) {
	rows, err := s.Do("SELECT @@gtid_binlog_pos")
	if err != nil {
		return 0, err
	}
	return number(rows[0][0])
}

// number returns the number of a transaction, "0-1-42".
func number(gtid string) (int64, error) {
	if gtid == "" {
		return 0, nil
	}
	return strconv.ParseInt(gtid[strings.LastIndex(gtid, "-")+1:], 10, 64)
}

// AwaitStandby returns when the server is a replica that has everything its primary had at the
// call.
func (s *MariaDBServer) AwaitStandby(primary *MariaDBServer) {
	s.owner.Helper()
	wrote, err := primary.Position()
	if err == nil {
		err = await(func() error { return s.follows(wrote) })
	}
	if err != nil {
		s.owner.Fatalf("%s: %v", s.name, err)
	}
}

// follows returns nil when the replica has what its primary wrote until then.
func (s *MariaDBServer) follows(wrote int64) error {
	for _, field := range []string{"Last_IO_Error", "Last_SQL_Error"} {
		if wrong, err := s.status(field); err != nil || strings.Contains(wrong, "binary log") || field == "Last_SQL_Error" && wrong != "" {
			return permanentError{errors.Join(errors.New("it does not follow: "+wrong), err)}
		}
	}
	if running, err := s.status("Slave_IO_Running"); err != nil || running != "Yes" {
		return errors.Join(errors.New("its receiver is "+running), err)
	}
	pos, err := s.status("Gtid_IO_Pos")
	if err != nil {
		return err
	}
	got, err := number(pos)
	if err == nil && got < wrote {
		err = fmt.Errorf("%d transactions behind the primary", wrote-got)
	}
	return err
}
