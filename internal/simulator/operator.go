package simulator

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

// headerTimeout is the maximum time until an answer begins. The answer to an import takes up to five minutes while a broker creates accounts.
const headerTimeout = 10 * time.Minute

// Operator is a client of the operators' API of several replicas.
type Operator struct {
	*operators.Client
	replicas *replicaURLs
	token    string
	baseURL  string // the URL for which requests are created
	http     *http.Transport
}

// NewOperator returns a client for the dispatcher at urls, which may list several replicas, separated by commas. After a call that failed,
// the next call goes to another replica. The token is an operator token with role admin.
func NewOperator(urls, token string) (*Operator, error) {
	transport := &http.Transport{ResponseHeaderTimeout: headerTimeout, MaxIdleConnsPerHost: registerConcurrency}
	o := &Operator{replicas: newReplicaURLs(urls, 0), token: token, http: transport}
	o.baseURL = o.replicas.urls[0]
	var err error
	o.Client, err = operators.New(operators.Config{URL: o.baseURL, Token: token, MaxTries: 1, Transport: o})
	return o, err
}

// RoundTrip sends request to one replica and returns its answer. Only a GET without a usable answer is repeated, once at each other
// replica.
func (o *Operator) RoundTrip(request *http.Request) (answer *http.Response, err error) {
	path := strings.TrimPrefix(request.URL.String(), o.baseURL)
	for n := len(o.replicas.urls); n > 0; n-- {
		base, position := o.replicas.current()
		forwarded := request.Clone(request.Context())
		if forwarded.URL, err = url.Parse(base + path); err != nil {
			return nil, err
		}
		forwarded.Host = ""
		answer, err = o.http.RoundTrip(forwarded)
		if err == nil && answer.StatusCode != http.StatusServiceUnavailable {
			break
		}
		o.replicas.failOver(position)
		if n == 1 || request.Method != http.MethodGet || request.Context().Err() != nil {
			break
		}
		if answer != nil {
			_ = answer.Body.Close()
		}
	}
	return answer, err
}
