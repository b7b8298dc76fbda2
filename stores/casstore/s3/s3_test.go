package s3_test

import (
	"testing"

	"github.com/dibs-go/dibs/internal/prove/house"
)

// The map of this module: the core of the store, and the signer of one client.
func TestHouse(t *testing.T) {
	house.Check(t, []house.Room{{
		Dir: ".",
		Imports: []string{
			house.Root + "/store", house.Root + "/store/storekit", house.Root + "/stores/casstore", house.Root + "/internal/backoff",
			"github.com/minio/minio-go/v7/pkg/credentials", "github.com/minio/minio-go/v7/pkg/signer",
		},
		Tests: []string{
			house.Root + "/store/storetest", house.Root + "/internal/prove/house",
			house.Root + "/internal/prove/servertest", house.Root + "/internal/prove/testkit",
		},
	}})
}
