package operators

import "fmt"

// RecentAttempts summarizes the attempts of a pool or of a batch that ended within the last five minutes.
type RecentAttempts struct {
	Ended              int           `json:"ended" doc:"Attempts that ended"`
	Failed             int           `json:"failed" doc:"Of ended: the device failed or rejected the task, or its lease ended. Some of the tasks are tried again"`
	Errors             []RecentError `json:"errors" doc:"The five most frequent errors of the failed attempts, the most frequent first"`
	ManyAttemptsFailed bool          `json:"many_fail" doc:"true: at least 5 attempts failed, and at least a fifth of those that ended"`
	IsSample           bool          `json:"is_sample" doc:"true: more attempts ended; only the latest were counted"`
}

// RecentError is an error text and the number of recent attempts that failed with this error.
type RecentError struct {
	Error    string `json:"error" doc:"Empty: the lease ended, and the device sent no error"`
	Attempts int    `json:"attempts" doc:"Number of failed attempts with this error"`
}

// Text returns the summary in words, such as: 98 % of 125 attempts failed within the last 5 min: connection refused (122). If few attempts
// failed, or r is nil, it returns an empty string.
func (r *RecentAttempts) Text() string {
	if r == nil || !r.ManyAttemptsFailed {
		return ""
	}
	text := fmt.Sprintf("%.0f %% of %d attempts failed within the last 5 min", 100*float64(r.Failed)/float64(r.Ended), r.Ended)
	if r.IsSample {
		text = fmt.Sprintf("%.0f %% of the latest %d attempts failed", 100*float64(r.Failed)/float64(r.Ended), r.Ended)
	}
	for i, e := range r.Errors {
		separator := ", "
		if i == 0 {
			separator = ": "
		}
		text += fmt.Sprintf("%s%s (%d)", separator, e.Words(), e.Attempts)
	}
	return text
}

// Words returns the error text. If the lease ended and the device sent no error, it returns a sentence that says so.
func (e RecentError) Words() string {
	if e.Error == "" {
		return "lease ended without a result"
	}
	return e.Error
}
