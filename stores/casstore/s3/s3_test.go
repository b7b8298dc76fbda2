package s3_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/dibs-go/dibs/internal/prove/house"
	"github.com/dibs-go/dibs/stores/casstore/s3"
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

// TestOpenSaysWhatIsWrong: a wrong bucket, credential, region or endpoint is named at the first answer, with
// what to do.
func TestOpenSaysWhatIsWrong(t *testing.T) {
	for _, test := range []struct {
		status     int
		body, want string
	}{
		{404, "NoSuchBucket", "is answered 404 NoSuchBucket: it is so; make the bucket"},
		{403, "AccessDenied", "403 AccessDenied: it is so; give the user the rights"},
		{403, "InvalidAccessKeyId", "correct AWS_ACCESS_KEY_ID"},
		{403, "SignatureDoesNotMatch", "correct AWS_SECRET_ACCESS_KEY"},
		{403, "RequestTimeTooSkewed", "correct the clock"},
		{301, "PermanentRedirect", "set region in the URL"},
		{400, "AuthorizationHeaderMalformed", "set region in the URL"},
		{501, "NotImplemented", "is answered 501 NotImplemented: it is so"},
		{404, "<html>not here</html>", "is answered 404; correct the endpoint"},
		{405, "", "is answered 405; correct the endpoint"},
		{200, "<html>hello</html>", "without an ETag; correct the endpoint"},
		{500, "", "is answered 500"},
	} {
		body := test.body
		if !strings.Contains(body, "<") {
			body = "<Error><Code>" + body + "</Code><Message>it is so.</Message></Error>"
		}
		if test.body == "" {
			body = ""
		}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(test.status)
			fmt.Fprint(w, body)
		}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, err := s3.Open(ctx, &s3.Options{Bucket: "bucket", Endpoint: server.URL, Credentials: credentials.NewStaticV4("a", "b", "")})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%d %q: %v; want %q", test.status, test.body, err, test.want)
		}
		cancel()
		server.Close()
	}
}
