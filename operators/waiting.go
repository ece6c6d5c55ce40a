package operators

// WaitingSample limits the number of waiting tasks that a request evaluates, because each evaluation takes time.
type WaitingSample struct {
	SampleSize int `query:"sample" minimum:"1" maximum:"500" default:"500" doc:"Maximum number of tasks that are evaluated; if more tasks wait, a random sample of this size"`
}

// ReasonFilter selects waiting tasks by their first reason.
type ReasonFilter struct {
	Code string `query:"code" maxLength:"64" doc:"Only tasks whose first reason has this code"`
}

// Waiting summarizes why the tasks of a pool or of a batch wait, grouped by reason.
type Waiting struct {
	Total     int64         `json:"total" doc:"Tasks that wait"`
	Evaluated int           `json:"judged" doc:"Number of waiting tasks that were evaluated"`
	Sampled   bool          `json:"sampled" doc:"true: only a sample of the tasks was evaluated; the counts are scaled up to the total"`
	Parts     []WaitingPart `json:"parts" doc:"The reasons that do not pass by themselves first, then the others; in each group the largest first. The counts add up to total"`

	RecentAttempts *RecentAttempts `json:"recent_attempts" doc:"The attempts that ended within the last 5 minutes"`
}

// WaitingPart is the group of tasks that wait for the same reason.
type WaitingPart struct {
	Code     string           `json:"code" doc:"Code of the first reason of each of these tasks"`
	Label    string           `json:"label" doc:"A few words, for people"`
	Count    int64            `json:"count"`
	Detail   string           `json:"detail" doc:"For people; if it differs between tasks, that of one of them"`
	Until    *Time            `json:"until" nullable:"true" doc:"When the first of these tasks may start without help; null: unknown"`
	Remedy   string           `json:"remedy" doc:"Remedy, for people"`
	Actions  []Action         `json:"actions" doc:"Actions that help each of these tasks; can be empty"`
	Examples []WaitingExample `json:"examples" doc:"At most three of these tasks"`
}

// WaitingExample is one task of a WaitingPart.
type WaitingExample struct {
	Task   int64  `json:"task"`
	Device string `json:"device"`
}

// WaitingTask is a waiting task and the first reason why it waits.
type WaitingTask struct {
	ID      int64    `json:"id"`
	Batch   int64    `json:"batch"`
	Device  string   `json:"device"`
	Code    string   `json:"code"`
	Detail  string   `json:"detail"`
	Until   *Time    `json:"until" nullable:"true"`
	Remedy  string   `json:"remedy"`
	Actions []Action `json:"actions"`

	LastSeen *Time `json:"last_seen" nullable:"true" doc:"Last report of the device; null: none, or a caller"`
}

// WaitingTaskList is a page of waiting tasks.
type WaitingTaskList struct {
	Tasks         []WaitingTask `json:"tasks"`
	NextPageToken string        `json:"next_page_token,omitempty"`
}
