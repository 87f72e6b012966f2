invoke() { case $(cat) in *crash*) kill -9 0 ;; esac; echo "{\"outputs\": {\"pid\": $$}}"; }
