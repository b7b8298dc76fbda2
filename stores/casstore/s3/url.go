package s3

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// ErrURL is the error of a text that is not a URL of this store.
var ErrURL = errors.New("s3: not the URL of a bucket")

// Form is the form of URLs.
const Form = "s3://BUCKET[/PREFIX][?endpoint=URL&region=REGION&tick=1s]"

var isBucket = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)

// Parse reads a URL. It connects to nothing.
//
// The endpoint is AWS's unless the URL or the environment (AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL)
// names one. The region is that of the URL, of AWS_REGION or AWS_DEFAULT_REGION, or us-east-1.
// Credentials are never in the URL: they come from the environment, the AWS files, or the role of
// the machine, container or pod.
func Parse(text string) (*Options, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "s3" || u.Host == "":
		return nil, fmt.Errorf("%w: it must be %s", ErrURL, Form)
	case u.User != nil:
		return nil, fmt.Errorf("%w: credentials come from the environment or from the role of the machine; remove what is before the @", ErrURL)
	}
	o := &Options{Bucket: u.Host, Prefix: strings.TrimPrefix(u.Path, "/")}
	if o.Prefix != "" && !strings.HasSuffix(o.Prefix, "/") {
		o.Prefix += "/"
	}
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, fmt.Errorf("%w: its parameters cannot be read", ErrURL)
	}
	for name, values := range q {
		value := values[len(values)-1]
		switch name {
		case "endpoint":
			o.Endpoint = value
		case "region":
			o.Region = value
		case "tick":
			if o.Store.Tick, err = time.ParseDuration(value); err != nil || o.Store.Tick < time.Millisecond {
				return nil, fmt.Errorf("%w: tick is %q; it must be a duration such as 1s", ErrURL, value)
			}
		default:
			return nil, fmt.Errorf("%w: the parameter %q is unknown; the known ones are endpoint, region and tick", ErrURL, name)
		}
	}
	d, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", ErrURL, strings.TrimPrefix(err.Error(), "s3: "))
	}
	return &d, nil
}

// withDefaults returns the options with their defaults, or an error that names the wrong field.
func (o *Options) withDefaults() (Options, error) {
	d := *o
	d.Region = cmp.Or(d.Region, os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"), "us-east-1")
	d.Endpoint = cmp.Or(d.Endpoint, os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL"))
	d.Store.Tick = cmp.Or(d.Store.Tick, defaultTick)
	if d.Credentials == nil {
		d.Credentials = credentials.NewChainCredentials([]credentials.Provider{
			&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}, &credentials.IAM{},
		})
	}
	switch e, err := url.Parse(d.Endpoint); {
	case !isBucket.MatchString(d.Bucket):
		return d, fmt.Errorf("s3: %q is not the name of a bucket", d.Bucket)
	case len(d.Prefix) > maxPrefix || strings.ContainsFunc(d.Prefix, func(r rune) bool { return r <= ' ' || r > '~' }):
		return d, fmt.Errorf("s3: the prefix must be at most %d printable ASCII characters without spaces", maxPrefix)
	case d.Endpoint != "" && (err != nil || e.Scheme != "http" && e.Scheme != "https" || e.Host == "" || e.User != nil || strings.Trim(e.Path, "/") != "" || e.RawQuery != ""):
		return d, errors.New("s3: the endpoint must be https://HOST or http://HOST")
	}
	return d, nil
}

// base returns the URL of the bucket. AWS has the bucket in the host.
func (o *Options) base() string {
	switch {
	case o.Endpoint != "":
		return strings.TrimRight(o.Endpoint, "/") + "/" + o.Bucket
	case strings.Contains(o.Bucket, "."): // no certificate is for such a host
		return "https://s3." + o.Region + ".amazonaws.com/" + o.Bucket
	}
	return "https://" + o.Bucket + ".s3." + o.Region + ".amazonaws.com"
}

// String returns the URL.
func (o *Options) String() string {
	text := "s3://" + o.Bucket
	if o.Prefix != "" {
		text += "/" + o.Prefix
	}
	if o.Endpoint != "" {
		text += "?endpoint=" + o.Endpoint
	}
	return text
}
