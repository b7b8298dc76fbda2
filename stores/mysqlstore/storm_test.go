//go:build nightly

package mysqlstore

import (
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
)

func TestStorm(t *testing.T) {
	onServers(t, func(t *testing.T, server *servertest.MariaDBServer) {
		suite(server).Storm(t)
	})
}
