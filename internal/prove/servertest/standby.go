//go:build unix

package servertest

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// copyPrimary replaces the data folder by a copy of the primary's, from which the server starts as
// its standby.
func (s *PostgresServer) copyPrimary() error {
	if err := removeSegment(s.folder.path); err != nil {
		return err
	}
	data, primary := s.folder.join("data"), s.options.StandbyOf
	if err := os.RemoveAll(data); err != nil {
		return err
	}
	err := s.tool(s.folder.path, s.as, "pg_basebackup", "-D", data, "-d", primary.URL(), "-c", "fast", "--no-sync")
	if err != nil {
		return err
	}
	return s.standby(primary.Addr())
}

// standby has the server start as a standby that follows what is at an address.
func (s *PostgresServer) standby(addr string) error {
	// In the folder of data, so it is replaced with it. Its name tells the primary which standby it is.
	from := postgresURL(addr, s.options.Password) + "&application_name=standby" + s.port.String()
	follow := "primary_conninfo = " + quoteSetting(from) + "\n"
	if err := s.as.write(s.folder.join("data/postgresql.auto.conf"), follow); err != nil {
		return err
	}
	return s.as.write(s.folder.join("data/standby.signal"), "")
}

// Follow makes a standby follow what is at an address, such as a Wire to its primary.
func (s *PostgresServer) Follow(addr string) {
	s.owner.Helper()
	s.do("leading", func() error {
		if err := s.standby(addr); err != nil {
			return err
		}
		_, err := s.Do("SELECT pg_reload_conf()")
		return err
	})
}

// Promote makes a standby a primary with its data, as pg_ctl promote does, and returns when it
// takes writes.
func (s *PostgresServer) Promote() {
	s.owner.Helper()
	s.do("promoting", func() error {
		if err := s.tool(s.folder.path, s.as, "pg_ctl", "promote", "-w", "-D", s.folder.join("data")); err != nil {
			return err
		}
		// pg_rewind reads the new timeline from the control file, which has it after a checkpoint.
		_, err := s.Do("CHECKPOINT")
		return err
	})
}

// Rejoin makes a server that was the primary before a standby of the new one: pg_rewind takes
// back what only the old primary had done. It follows what is at addr, such as a Wire to the
// primary. A server that runs is killed first. Both need
// PostgresOptions.Standbys.
func (s *PostgresServer) Rejoin(primary *PostgresServer, addr string) {
	s.owner.Helper()
	s.do("rewinding", func() error {
		if err := s.proc.kill(); err != nil {
			return err
		}
		s.down = true
		if err := removeSegment(s.folder.path); err != nil {
			return err
		}
		// pg_rewind starts the server alone, without the configuration in the folder above.
		if err := s.as.write(s.folder.join("data/postgresql.auto.conf"), strings.Join(rewindable, "\n")+"\n"); err != nil {
			return err
		}
		err := s.tool(s.folder.path, s.as, "pg_rewind", "-D", s.folder.join("data"), "--no-sync", "--source-server="+primary.URL())
		if err != nil {
			return err
		}
		if err := s.standby(addr); err != nil {
			return err
		}
		return s.run()
	})
}

// Position returns how many bytes of its log a primary has on disk. The log has every change.
func (s *PostgresServer) Position() (int64, error) { return s.position("pg_current_wal_flush_lsn()") }

// Received returns how many bytes of its primary's log a standby has received that is cut off from
// it. So much it will have when it is promoted.
func (s *PostgresServer) Received() (int64, error) {
	err := await(func() error {
		rows, err := s.Do("SELECT count(*) FROM pg_stat_wal_receiver")
		if err == nil && rows[0][0] != "0" {
			err = errors.New("it goes on to receive")
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	return s.position("greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())")
}

func (s *PostgresServer) position(of string) (int64, error) {
	rows, err := s.Do("SELECT (" + of + " - '0/0')::bigint")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(rows[0][0], 10, 64)
}

// AwaitStandby returns when the server is a standby that has everything its primary had at the
// call, and the primary knows it.
func (s *PostgresServer) AwaitStandby(primary *PostgresServer) {
	s.owner.Helper()
	wrote, err := primary.Position()
	if err == nil {
		err = await(func() error { return s.follows(primary, wrote) })
	}
	if err != nil {
		s.owner.Fatalf("%s: %v", s.name, err)
	}
}

// follows returns nil when the primary says that the standby has on disk what it wrote until then.
func (s *PostgresServer) follows(primary *PostgresServer, wrote int64) error {
	rows, err := primary.Do(fmt.Sprintf(
		"SELECT (flush_lsn - '0/0')::bigint FROM pg_stat_replication WHERE application_name = 'standby%s' AND state = 'streaming'", s.port))
	if err != nil {
		return err
	}
	if len(rows) == 0 || rows[0][0] == "NULL" {
		return errors.New("the primary has no standby of that name")
	}
	got, err := strconv.ParseInt(rows[0][0], 10, 64)
	if err == nil && got < wrote {
		err = fmt.Errorf("%d bytes behind the primary", wrote-got)
	}
	return err
}
