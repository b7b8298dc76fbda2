//go:build unix

package servertest

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
)

// galeraLibrary is the library by which MariaDB servers are a cluster.
var galeraLibrary = program{
	names:  []string{"libgalera_smm.so"},
	places: []string{"/usr/lib/galera", "/usr/lib64/galera", "/usr/lib/galera-4", "/usr/lib64/galera-4"},
	pkg:    "galera-4",
}

// Galera starts a Galera cluster of two MariaDB servers, and returns when both take writes. They end
// with their owner. nil options mean the defaults. Do not restart a node: the cluster would be two.
func Galera(owner Owner, o *MariaDBOptions) (nodes [2]*MariaDBServer) {
	owner.Helper()
	nodes, err := newGalera(owner, options(o))
	return started(owner, nodes, err)
}

// newGalera starts the first node twice: it writes its place in the cluster's history into its data
// at the first start. The second node begins with a copy of that.
func newGalera(owner Owner, o *MariaDBOptions) (nodes [2]*MariaDBServer, err error) {
	if o.MySQL {
		return nodes, errors.New("MySQL is not a node of a Galera cluster: leave MariaDBOptions.MySQL false")
	}
	library, err := galeraLibrary.find()
	if err != nil {
		return nodes, err
	}
	first, err := newMariaDB(owner, o) // alone, because its first SQL is for a server alone
	if err != nil {
		return nodes, err
	}
	second, err := makeMariaDB(owner, o)
	if err != nil {
		return nodes, err
	}
	if err := first.as.write(first.folder.join(transferProgram), transferText); err != nil {
		return nodes, err
	}
	if err := errors.Join(
		syscall.Chmod(first.folder.join(transferProgram), 0o755),
		syscall.Mkfifo(first.folder.join("position"), 0o600),
		first.as.own(first.folder.join("position")),
	); err != nil {
		return nodes, err
	}
	first.Stop()
	address, err := first.enter(library, first.folder.path, "")
	if err != nil {
		return nodes, err
	}
	if err := first.begin(); err != nil {
		return nodes, err
	}
	first.Stop()
	if err := copyTree(second.folder.join("data"), first.folder.join("data"), second.as); err != nil {
		return nodes, err
	}
	if err := first.begin(); err != nil {
		return nodes, err
	}
	if _, err := second.enter(library, first.folder.path, address); err != nil {
		return nodes, err
	}
	return [2]*MariaDBServer{first, second}, second.begin()
}

const (
	// transferMethod names the program that gives a new node the data of an old one.
	transferMethod  = "given"
	transferProgram = "wsrep_sst_" + transferMethod
	// transferText is that program. The node has the data already, so it is told their position in
	// the cluster's history, and gets what comes after it from the old node.
	transferText = `#!/bin/sh
while [ $# -gt 0 ]; do
	case $1 in
	--role) role=$2 ;;
	--gtid) position=$2 ;;
	esac
	shift
done
pipe=$(dirname "$0")/position
case $role in
joiner)
	echo "ready 127.0.0.1"
	read -r position <"$pipe"
	echo "$position"
	;;
donor)
	echo "$position" >"$pipe"
	echo "done $position"
	;;
esac
`
)

// enter configures a server that is down as a node. It returns the address of its group. The folder
// has the program of the transfer. Without the address of a group the node is the first.
func (s *MariaDBServer) enter(library, folder, group string) (address string, err error) {
	var ports [2]*port // of the group, and for what a new node lacks
	for i := range ports {
		if ports[i], err = reservePort(); err != nil {
			return "", err
		}
		s.owner.Cleanup(ports[i].release)
	}
	var lines []string
	for line := range strings.Lines(s.options.config(s.folder, s.port)) {
		if !strings.HasPrefix(line, "init-file") { // its statements would be the whole cluster's
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	lines = append(lines,
		"wsrep_on = ON",
		"wsrep_provider = "+library,
		"wsrep_cluster_name = dibs",
		"wsrep_cluster_address = gcomm://"+group,
		"wsrep_node_address = "+ports[0].addr(),
		fmt.Sprintf(`wsrep_provider_options = "gmcast.listen_addr=tcp://%s;ist.recv_addr=%s;gcache.size=16M"`, ports[0].addr(), ports[1].addr()),
		"wsrep_sst_method = "+transferMethod,
		"binlog_format = ROW",
		"innodb_autoinc_lock_mode = 2",
	)
	if err := s.as.write(s.folder.join("my.cnf"), strings.Join(lines, "\n")+"\n"); err != nil {
		return "", err
	}
	if group == "" {
		s.command.args = append(s.command.args, "--wsrep-new-cluster")
	}
	for i, variable := range s.command.env {
		if path, ok := strings.CutPrefix(variable, "PATH="); ok {
			s.command.env[i] = "PATH=" + folder + ":" + path
		}
	}
	s.ready = s.synced
	return ports[0].addr(), nil
}

// synced returns nil when the node takes writes.
func (s *MariaDBServer) synced() error {
	rows, err := s.Do("SHOW STATUS LIKE 'wsrep_ready'")
	if err != nil {
		return err
	}
	if len(rows) != 1 || rows[0][1] != "ON" {
		return fmt.Errorf("the node is not ready: %v", rows)
	}
	return nil
}
