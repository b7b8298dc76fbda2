//go:build nightly

package anystore

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestNothingIsLeftOnServers: as TestNothingIsLeft, on every server.
func TestNothingIsLeftOnServers(t *testing.T) {
	server := servertest.Redis(t, nil)
	cluster := servertest.RedisCluster(t, &servertest.ClusterOptions{Replicas: -1})
	sentinels := servertest.RedisSentinel(t, &servertest.SentinelOptions{DownAfter: time.Minute})
	postgres := servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true})
	maria := servertest.MariaDB(t, &servertest.MariaDBOptions{NoSync: true})
	for _, test := range []struct {
		url         string
		connections func() string
	}{
		{server.URL(), onRedis(server)},
		{cluster.URL(), onRedis(cluster.Nodes()...)},
		{sentinels.URL(), onRedis(append(sentinels.Servers(), sentinels.Sentinels()...)...)},
		{postgres.URL(), func() string {
			return rows(postgres.Query("SELECT pid, state, query FROM pg_stat_activity WHERE application_name = 'dibs'"))
		}},
		{maria.URL(), func() string {
			return rows(maria.Query("SELECT id, command, info FROM information_schema.processlist WHERE host <> 'localhost' AND user = 'root'"))
		}},
	} {
		checkNothingIsLeft(t, test.url, test.connections)
	}
}

// onRedis describes the servers' connections to this process.
func onRedis(servers ...*servertest.RedisServer) func() string {
	return func() string {
		var left []string
		for _, s := range servers {
			for line := range strings.Lines(fmt.Sprint(s.Must("CLIENT", "LIST"))) {
				if strings.Contains(line, "name=dibs") || strings.Contains(line, "lib-name=rueidis") {
					left = append(left, line)
				}
			}
		}
		return strings.Join(left, "")
	}
}

// rows describes what a query found; "" for nothing.
func rows(found [][]string) string {
	if len(found) == 0 {
		return ""
	}
	return fmt.Sprint(found)
}

// TestOpenServers: as TestOpen, on servers.
func TestOpenServers(t *testing.T) {
	server := servertest.Redis(t, &servertest.RedisOptions{Password: "secret"})
	postgres := servertest.Postgres(t, &servertest.PostgresOptions{Password: "secret", NoSync: true})
	maria := servertest.MariaDB(t, &servertest.MariaDBOptions{Password: "secret", NoSync: true})
	postgres.Query("CREATE SCHEMA own")
	checkOpen(t, []opened{
		{server.URL() + "?prefix=p", "redis://" + server.Addr() + "/0?prefix=p", true},
		{postgres.URL() + "&schema=own", "postgres://postgres@" + postgres.Addr() + "/postgres?sslmode=disable&schema=own", true},
		{
			"postgresql://postgres@" + postgres.Addr() + "/postgres?password=secret&sslmode=disable",
			"postgresql://postgres@" + postgres.Addr() + "/postgres?sslmode=disable", true,
		},
		{maria.URL() + "?prefix=p", "mysql://root@" + maria.Addr() + "/app?prefix=p", true},
		{strings.Replace(maria.URL(), "mysql:", "mariadb:", 1), "mariadb://root@" + maria.Addr() + "/app", true},
	}...)
	checkToInspect(t, server.URL(), postgres.URL(), maria.URL())
}

// TestReaderOnMySQL: as TestReaderOnPostgres, on MySQL.
func TestReaderOnMySQL(t *testing.T) {
	checkReaderOn(t, servertest.MariaDB(t, &servertest.MariaDBOptions{MySQL: true, NoSync: true}), "dibs_key") // MySQL names no database
}

// TestRightsOnMySQL: as TestRights, on MySQL.
func TestRightsOnMySQL(t *testing.T) {
	checkRightsOn(t, servertest.MariaDB(t, &servertest.MariaDBOptions{MySQL: true, NoSync: true}))
}

// TestBucket: a store in a bucket is used, listed and checked by its URL, and nothing is left.
func TestBucket(t *testing.T) {
	server := servertest.S3(t)
	t.Setenv("AWS_ACCESS_KEY_ID", servertest.S3Access)
	t.Setenv("AWS_SECRET_ACCESS_KEY", servertest.S3Secret)
	url := server.Store("") + "&tick=20ms"
	checkNothingIsLeft(t, url, nil)
	for _, m := range []Mode{ToUse, ToInspect, ToList, ToCheck} {
		s, err := Open(t.Context(), url, m)
		testkit.Must(t, err)
		found, err := s.Check(t.Context())
		testkit.Check(t, err)
		if slices.ContainsFunc(found, func(f store.Finding) bool { return f.Severity == store.SeverityDangerous }) {
			t.Errorf("Check finds %+v", found)
		}
		version, err := s.Version(t.Context())
		if testkit.Check(t, err); !strings.Contains(version, "VERSITYGW") {
			t.Errorf("the version is %q", version)
		}
		testkit.Check(t, s.Close())
	}
	for name, change := range map[string][2]string{"no bucket": {"s3://dibs", "s3://none"}, "no server": {server.Addr(), servertest.Addr(t)}} {
		if _, err := Open(t.Context(), strings.Replace(url, change[0], change[1], 1), ToUse); err == nil {
			t.Errorf("%s: the store is open", name)
		}
	}
}
