package fault_test

import (
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/proof/fault"
)

func TestThrough(t *testing.T) {
	for _, test := range []struct {
		url  string
		want string // the URL, with WIRE for the wire's address; or a part of the error
	}{
		{"redis://127.0.0.1:7000/0", "redis://WIRE/0"},
		{"redis://localhost", "redis://WIRE"},
		{"redis://:s3cr@t/x@localhost:1/2?prefix=a@b", "redis://:s3cr@t/x@WIRE/2?prefix=a@b"},
		{"redis://:p%2Fq@localhost:1/2?prefix=p", "redis://:p%2Fq@WIRE/2?prefix=p"},
		{"postgres://u:p@h@127.0.0.1/db?sslmode=disable", "postgres://u:p@h@WIRE/db?sslmode=disable"},
		{"postgresql://[::1]:5433/db", "postgresql://WIRE/db"},
		{"mysql://root@127.0.0.1/app?migrate=true", "mysql://root@WIRE/app?migrate=true"},
		{"mariadb://root@127.0.0.1:3307/app", "mariadb://root@WIRE/app"},
		{"http://127.0.0.1:7331", "http://WIRE"},
		{"http://:t%40k@localhost", "http://:t%40k@WIRE"},
		{"s3://bucket/a?endpoint=http://127.0.0.1:7070&tick=1s", "s3://bucket/a?endpoint=http://WIRE&tick=1s"},
		{"s3://bucket?endpoint=http://localhost", "s3://bucket?endpoint=http://WIRE"},
		{"s3://bucket?endpoint=https://localhost", "no host"},
		{"s3://bucket", "no host"},
		{"http://a,b", "several servers"},
		{"https://dibs.internal", "by TLS"},
		{"http+unix:/run/dibs/dibs.sock", "by a socket"},
		{"rediss://127.0.0.1", "by TLS"},
		{"redis+sentinel://a,b/m", "find their servers by themselves"},
		{"redis+unix:///tmp/s", "by a socket"},
		{"postgres:///db?host=/tmp", "a socket"},
		{"postgres://a,b/db", "several servers"},
		{"postgres://h/db?sslmode=verify-full", "by TLS"},
		{"mysql://root@h/app?tls=true", "by TLS"},
		{"mysql://root@h/app?socket=/tmp/s", "a socket"},
		{"sqlite:/srv/dibs.db", "no server"},
		{"memory:", "no server"},
	} {
		wires, urls, err := fault.Through(test.url, 1)
		if err != nil {
			if strings.Contains(test.want, "WIRE") || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: %v; want %s", test.url, err, test.want)
			}
			continue
		}
		want := strings.ReplaceAll(test.want, "WIRE", wires[0].Addr())
		if urls[0] != want {
			t.Errorf("%s: through the wire it is %s; want %s", test.url, urls[0], want)
		}
		testkit.Check(t, wires[0].Close())
	}
}
