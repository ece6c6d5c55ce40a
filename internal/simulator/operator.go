package simulator

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

// answerLimit is the maximum time until an answer begins. The answer to an import takes up to five minutes while a broker creates accounts.
const answerLimit = 10 * time.Minute

// Operator is a client of the operators' API of several replicas.
type Operator struct {
	*operators.Client
	replicas *replicas
	token    string
	first    string // the URL for which requests are created
	http     *http.Transport
}

// NewOperator returns a client for the dispatcher at url, which may list several replicas, separated by commas. After a call that failed,
// the next call goes to another replica. The token is an operator token with role admin.
func NewOperator(url, token string) (*Operator, error) {
	transport := &http.Transport{ResponseHeaderTimeout: answerLimit, MaxIdleConnsPerHost: registerAtOnce}
	o := &Operator{replicas: newReplicas(url, 0), token: token, http: transport}
	o.first = o.replicas.urls[0]
	var err error
	o.Client, err = operators.New(operators.Config{URL: o.first, Token: token, Tries: 1, Transport: o})
	return o, err
}

// RoundTrip sends a request to one replica. Only a GET without a usable answer is repeated, once at each other replica.
func (o *Operator) RoundTrip(r *http.Request) (answer *http.Response, err error) {
	path := strings.TrimPrefix(r.URL.String(), o.first)
	for n := len(o.replicas.urls); n > 0; n-- {
		base, mark := o.replicas.current()
		to := r.Clone(r.Context())
		if to.URL, err = url.Parse(base + path); err != nil {
			return nil, err
		}
		to.Host = ""
		answer, err = o.http.RoundTrip(to)
		if err == nil && answer.StatusCode != http.StatusServiceUnavailable {
			break
		}
		o.replicas.leave(mark)
		if n == 1 || r.Method != http.MethodGet || r.Context().Err() != nil {
			break
		}
		if answer != nil {
			_ = answer.Body.Close()
		}
	}
	return answer, err
}
